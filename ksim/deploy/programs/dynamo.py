"""Dynamo's workers: `python -m dynamo.vllm`, `dynamo.sglang` and `dynamo.trtllm`, with the flags of their engines."""

from collections.abc import Mapping

from attrs import evolve, field, frozen

from ksim.deploy.commands import EngineLaunch, ImportOptions, Note, ShellCommand, Word, launch_of
from ksim.foundation.errors import ConfigError

__all__ = ["Dynamo"]

#: How the engine of a worker is started without Dynamo.
_ENGINES: Mapping[str, tuple[str, ...]] = {
    "dynamo.vllm": ("vllm", "serve"), "dynamo.sglang": ("python3", "-m", "sglang.launch_server"),
    "dynamo.trtllm": ("trtllm-serve",)}
_WHY = "how Dynamo finds and watches a worker changes no schedule"
_SWITCHES = ("publish-events-and-metrics", "use-kv-events", "enable-local-indexer", "embedding-worker",
             "frontend-decoding", "dyn-enable-structural-tag", "publish-kv-events")
_VALUES = ("endpoint", "endpoint-types", "dyn-endpoint-types", "request-plane", "event-plane", "discovery-backend",
           "store-kv", "dyn-tool-call-parser", "dyn-reasoning-parser", "custom-jinja-template", "namespace",
           "dyn-namespace", "migration-limit", "dump-config-to", "dyn-exclude-tools-when-tool-choice-none",
           "kv-block-size", "next-endpoint", "modality", "durable-kv-events")
_REFUSED = {
    "multimodal-worker": "workers for images alone", "multimodal-processor": "workers for images alone",
    "multimodal-encode-worker": "workers for images alone", "route-to-encoder": "workers for images alone",
    "multimodal-encode-prefill-worker": "workers for images alone", "multimodal-decode-worker":
    "workers for images alone", "ec-connector-backend": "caches of encoders", "encode-endpoint": "workers for images",
    "override-engine-args": "settings in JSON beside the engine's own",
}
_ROLES = {"is-prefill-worker": "prefill", "is-decode-worker": "decode"}
_MODES = {"prefill": "prefill", "decode": "decode", "agg": "both", "aggregated": "both", "prefill_and_decode": "both"}
_CONNECTORS = {"nixl": "NixlConnector", "lmcache": "LMCacheConnectorV1"}
#: Options of dynamo.trtllm that trtllm-serve has by another name.
_TRTLLM = {"extra-engine-args": "--extra_llm_api_options", "tensor-parallel-size": "--tp_size",
           "pipeline-parallel-size": "--pp_size", "expert-parallel-size": "--ep_size",
           "max-batch-size": "--max_batch_size", "max-num-tokens": "--max_num_tokens", "max-seq-len": "--max_seq_len",
           "max-beam-width": "--max_beam_width", "free-gpu-memory-fraction": "--kv_cache_free_gpu_memory_fraction"}


class Dynamo:
    """Rewrites a worker's command as that of its engine."""

    def recognises(self, command: ShellCommand) -> bool:
        return _module(command) is not None

    def launch(self, command: ShellCommand, wanted: ImportOptions) -> EngineLaunch:
        """The engine that *command* starts; raises ConfigError for workers that are not simulated."""
        index = _module(command)
        assert index is not None, "recognised"
        module = command.words[index].text
        taken = _Taken(module, command.words[index].where)
        taken.read([*command.words[index + 1:]])
        start = tuple(Word(text, taken.where) for text in _ENGINES[module])
        made = launch_of(evolve(command, words=(*start, *taken.words)), wanted)
        return evolve(made, role=taken.role or made.role, idle=(*made.idle, *taken.idle))


def _module(command: ShellCommand) -> int | None:
    """The place of the module among the words."""
    return next((index for index, word in enumerate(command.words[:6]) if word.text in _ENGINES
                 and index and command.words[index - 1].text == "-m"), None)


@frozen
class _Taken:
    """The words of the engine, and what Dynamo's own say."""

    module: str
    where: str
    words: list[Word] = field(factory=list, init=False)
    idle: list[Note] = field(factory=list, init=False)
    _roles: list[str] = field(factory=list, init=False)

    @property
    def role(self) -> str:
        return self._roles[-1] if self._roles else ""

    def read(self, words: list[Word]) -> None:
        """Take all *words*: those of Dynamo's own one by one, the others as they are."""
        while words:
            word = words.pop(0)
            name, equals, value = word.text.removeprefix("--").partition("=")
            name = name.replace("_", "-")
            if not word.text.startswith("--") or not self._takes(name):
                self.words.append(word)
            elif name in _ROLES:
                self._roles.append(_ROLES[name])
            elif name in _SWITCHES or name in _REFUSED:
                self._switch(name, word)
            else:
                if not equals and not words:
                    raise ConfigError(word.where, f"{word.text} has no value")
                self._valued(name, word, evolve(word, text=value) if equals else words.pop(0))

    def _takes(self, name: str) -> bool:
        """Whether *name* is a flag of Dynamo's own."""
        own = name in (*_ROLES, *_SWITCHES, *_REFUSED, *_VALUES) or name.startswith("no-dyn-")
        roles = name == "disaggregation-mode" and self.module != "dynamo.sglang"
        connects = name == "connector" and self.module == "dynamo.vllm"
        renamed = self.module == "dynamo.trtllm" and name in (*_TRTLLM, "model", "model-path", "served-model-name")
        return own or roles or connects or renamed

    def _switch(self, name: str, word: Word) -> None:
        if name in _REFUSED:
            raise ConfigError(word.where, f"--{name} is not simulated: {_REFUSED[name]}")
        self.idle.append(Note(word.where, word.text, _WHY))

    def _valued(self, name: str, word: Word, value: Word) -> None:
        if name in ("disaggregation-mode", "connector"):
            value.known()
        if name == "disaggregation-mode":
            if value.text not in _MODES:
                raise ConfigError(value.where, f"--{name} {value.text}: expected {', '.join(_MODES)}")
            self._roles.append(_MODES[value.text])
        elif name == "connector":
            self._connect(value)
        elif name in ("model", "model-path"):
            self.words.insert(0, value)
        elif name in _TRTLLM:
            self.words.extend((Word(_TRTLLM[name], word.where), value))
        else:
            self.idle.append(Note(word.where, f"{word.text} {value.text}", _WHY))

    def _connect(self, value: Word) -> None:
        """Which connector moves KV, by Dynamo's short names."""
        if value.text in ("none", "null", ""):
            return
        if value.text not in _CONNECTORS:
            raise ConfigError(value.where, f"--connector {value.text} is not simulated; there are"
                                           f" {', '.join(_CONNECTORS)}, none")
        config = f'{{"kv_connector": "{_CONNECTORS[value.text]}", "kv_role": "kv_both"}}'
        self.words.extend((Word("--kv-transfer-config", value.where), Word(config, value.where)))

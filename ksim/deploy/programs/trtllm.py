"""TensorRT-LLM: `trtllm-serve MODEL`, with the YAML of its LLM API."""

from collections.abc import Iterator, Mapping, Sequence

from ksim.deploy.commands import Command, behind
from ksim.deploy.engines import trtllm
from ksim.deploy.engines.launching import launch, model_of, model_word, release_of
from ksim.deploy.engines.vllm import with_acceptance
from ksim.deploy.flags.given import Flag, Given, Parser, flag_table, is_open, refuse_open, value_of, word_of
from ksim.deploy.flags.meaning import Reading, meaning
from ksim.deploy.launches import Launch, Wanted
from ksim.deploy.proxies import keys_in
from ksim.deploy.texts import Entry
from ksim.foundation.errors import ConfigError, did_you_mean
from ksim.scenario.models import model_of as known_model

__all__ = ["Trtllm"]

_STARTS = (("trtllm-serve",), ("-m", "tensorrt_llm.commands.serve"))
#: Other commands of trtllm-serve's.
_OTHERS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "grpc")
_ROLES = {"CONTEXT": "prefill", "GENERATION": "decode"}


class Trtllm:
    """Reads the options of `trtllm-serve` and its YAML."""

    def recognises(self, command: Command) -> bool:
        words = behind(command.words, _STARTS)
        return words is not None and not (words and words[0].text in _OTHERS)

    def launch(self, command: Command, wanted: Wanted) -> Launch:
        """The engine that *command* starts; raises ConfigError for what TensorRT-LLM or ksim would refuse."""
        words = behind(command.words, _STARTS) or []
        words = words[1:] if words and words[0].text == "serve" else words
        parser = Parser(flag_table("trtllm", "TensorRT-LLM"), idle=meaning("trtllm").is_idle)
        given = self._with_yaml(parser.read(words), command)
        model, assumed = model_of(command, wanted, model_word(parser, given))
        reading = Reading(meaning("trtllm"), trtllm.HANDLERS)
        reading.serve = {"admission": "reserve_output", "enable_chunked_prefill": False,
                         "cudagraph_mode": "FULL_DECODE_ONLY", **trtllm.division(given), **trtllm.waiting(given)}
        reading.take(given)
        trtllm.fit_prompts(reading, known_model(model.name).max_length)
        role = _role(given)
        if role in ("prefill", "decode"):
            reading.serve["kv_transfer_config"] = {"kv_connector": "tensorrt_llm"}
        with_acceptance(reading, command.where)
        return launch(command, release_of("trtllm", command, wanted), model, reading, role=role, remarks=assumed,
                      ports=(int(value_of(given, "port", 8000)),), hardware={"host": "trtllm"},
                      free_share=_free_share(given))

    def _with_yaml(self, given: list[Given], command: Command) -> list[Given]:
        """*given* with the keys of the YAML, which count more than options."""
        path = word_of(given, "extra_llm_api_options")
        if path is None:
            return given
        keys = [*_keys(keys_in(command, path, "--config"))]
        said = {one.dest for one in keys}
        return [*(one for one in given if one.dest not in said), *keys]


def _keys(keys: Mapping[str, Entry]) -> Iterator[Given]:
    """The keys of the YAML as flags with their places."""
    for key, value in keys.items():
        flag, plain = _flag(key, value.place), value.plain
        if plain is not None or key in trtllm.TABLES:  # an empty key is left out, but a table may be switched off so
            if is_open(str(plain)) and not meaning("trtllm").is_idle(key):
                refuse_open(str(plain), value.place)
            free = plain is None or is_open(str(plain))
            read = plain if free else trtllm.read_as(flag.kind, plain, value.place, key)
            yield Given(flag, read, f"{key}: {plain}", value.place, is_open(str(plain)))


def _flag(name: str, where: str) -> Flag:
    """The option, or the key of the LLM API alone; raises ConfigError for one that is not known."""
    table = {flag.dest: flag for flag in flag_table("trtllm", "TensorRT-LLM").flags}
    if name in table:
        return table[name]
    means = meaning("trtllm")
    if name in trtllm.HANDLERS or name in means.keys or name in means.values or means.kinds(name):
        return Flag(name, (name,), trtllm.KINDS.get(name, "json"))
    known = [*table, *trtllm.HANDLERS, *(flag for group in (*means.idle, *means.refused) for flag in group.flags)]
    raise ConfigError(where, f"{name} is no key of the LLM API that ksim knows{did_you_mean(name, known)}")


def _role(given: Sequence[Given]) -> str:
    """The role that `--server_role` says; with a transceiver for KV it is open."""
    said = str(value_of(given, "server_role", "")).upper()
    if said in _ROLES:
        return _ROLES[said]
    return "" if value_of(given, "cache_transceiver_config") else "both"


def _free_share(given: Sequence[Given]) -> float | None:
    """The share, for KV, of the memory that weights leave free; None where nobody says it."""
    said = {one.dest: one for one in given if one.dest in ("kv_cache_config", "free_gpu_memory_fraction")}
    table = trtllm.cache_table(said["kv_cache_config"]) if "kv_cache_config" in said else {}
    share = table.get("free_gpu_memory_fraction", value_of(given, "free_gpu_memory_fraction"))
    if share is None:
        return None
    if not 0 <= share <= 1:
        where = said["kv_cache_config" if "free_gpu_memory_fraction" in table else "free_gpu_memory_fraction"].where
        raise ConfigError(where, f"free_gpu_memory_fraction: expected 0 to 1, not {share}")
    return float(share)



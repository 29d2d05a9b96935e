"""vLLM: `vllm serve MODEL`, `python -m vllm.entrypoints.openai.api_server`, and images that start them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ksim.deploy.commands import Command, Word, behind
from ksim.deploy.engines import vllm
from ksim.deploy.engines.launching import launch, model_of, model_word, release_of
from ksim.deploy.flags.given import Given, Parser, flag_table, value_of
from ksim.deploy.flags.meaning import Handler, Reading, meaning, names_of, without_older
from ksim.deploy.launches import Launch, Note, Wanted
from ksim.deploy.proxies import with_config_file

__all__ = ["Vllm"]

_STARTS = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("-m", "vllm.entrypoints.api_server"),
           ("-m", "vllm.entrypoints.cli.main", "serve"), ("api_server.py",))
HANDLERS: Mapping[str, Handler] = {**vllm.COMPILATION, **vllm.FURTHER, **vllm.KV_TRANSFER,
                                   **vllm.NODES, **vllm.SPECULATION}
#: Releases that fuse by themselves what ksim leaves apart (config/vllm.py: enable_allreduce_rms_fusion, from -O2 on).
_FUSING = ("vllm-0.22", "vllm-0.33")
_FUSED = ("not set: vLLM fuses small all-reduces with the norm after them by default, on Hopper and Blackwell where"
          " FlashInfer is installed; serve.fuse_allreduce_rms = true does so here")


class Vllm:
    """Reads the flags of `vllm serve`."""

    def recognises(self, command: Command) -> bool:
        return _arguments(command) is not None

    def launch(self, command: Command, wanted: Wanted) -> Launch:
        """The engine that *command* starts; raises ConfigError for what vLLM or ksim would refuse."""
        words = _level_spelt_out(with_config_file(command, _arguments(command) or []))
        words, older = without_older("vllm", words)
        parser = Parser(flag_table("vllm", "vLLM"), names_of("vllm"), meaning("vllm").is_idle)
        given = parser.read(words)
        release = release_of("vllm", command, wanted)
        model, assumed = model_of(command, wanted, model_word(parser, given))
        reading = Reading(meaning("vllm"), HANDLERS)
        reading.take(given)
        _environment(reading, command)
        vllm.with_acceptance(reading, command.where)
        _defaults(reading, given, release.engine)
        return launch(command, release, model, reading, role=vllm.role_of(reading.serve),
                      replicas=0 if vllm.is_further(given) else 1, ports=(int(value_of(given, "port", 8000)),),
                      scenario=_scenario(reading, given), remarks=(*assumed, *older))


def _arguments(command: Command) -> list[Word] | None:
    """The words behind `vllm serve`, or all of a container whose image starts it; None for another command."""
    words = behind(command.words, _STARTS)
    if words is not None or command.image is None or not re.search(r"vllm", command.image.text):
        return words
    first = command.words[0].text if command.words else ""
    starts = first.startswith("-") or re.fullmatch(r"[\w.-]+/[\w.-]+", first) or first == "serve"
    return [*command.words[1 if first == "serve" else 0:]] if starts else None


def _level_spelt_out(words: Sequence[Word]) -> list[Word]:
    """*words* with `-O3`, `-O 3` and `-O=3` as `--optimization-level 3`; `-O.key` is of the compilation config."""
    spelt: list[Word] = []
    for word in words:
        match = re.fullmatch(r"-O=?(\d|\{.*)?(\..*)?", word.text, re.DOTALL)
        if match is None:
            spelt.append(word)
        elif match[2] or (match[1] or "").startswith("{"):
            spelt += [Word(f"--compilation-config{match[2] or ''}", word.where),
                      *([Word(match[1], word.where)] if match[1] else [])]
        else:
            spelt.append(Word(f"--optimization-level={match[1]}" if match[1] else "--optimization-level", word.where))
    return spelt


def _environment(reading: Reading, command: Command) -> None:
    """The variables that change a schedule."""
    word = command.environment.get("VLLM_ALL2ALL_BACKEND")
    known = reading.meaning.values["all2all_backend"].known
    if word is not None and "all2all_backend" not in reading.serve and word.known().text in known:
        reading.serve["all2all_backend"] = known[word.text]
        reading.remarks.append(Note(word.where, f"VLLM_ALL2ALL_BACKEND={word.text}", "taken as --all2all-backend"))


def _defaults(reading: Reading, given: Sequence[Given], engine: str) -> None:
    """Say which default of the release ksim does not take over."""
    serve = reading.serve
    optimized = not serve.get("enforce_eager") and str(value_of(given, "optimization_level", 2)) not in ("0", "1")
    fuses = engine in _FUSING and optimized and serve.get("tensor_parallel_size", 1) > 1
    if fuses and "fuse_allreduce_rms" not in serve:
        reading.remarks.append(Note("", "fuse_allreduce_rms", _FUSED))


def _scenario(reading: Reading, given: Sequence[Given]) -> dict[str, Any]:
    """Keys beside `serve`: vLLM balances its data-parallel ranks itself."""
    if reading.serve.get("data_parallel_size", 1) == 1 or not vllm.balances_itself(given):
        return {}
    reading.remarks.append(Note("", "router = vllm_dp_balancer", "vLLM's own balancer of data-parallel ranks"))
    servers = value_of(given, "api_server_count")
    return {"router": {"name": "vllm_dp_balancer", "client_count": servers} if servers else "vllm_dp_balancer"}

"""vLLM: `vllm serve MODEL`, `python -m vllm.entrypoints.openai.api_server`, and images that start them.

Most flags mean what ksim/data/flags says.  Handlers read those that say more than one value: tables in JSON (CUDA
graphs, KV transfer, speculation), adapters, formats, and which node of an engine a line starts.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from attrs import evolve

from ksim.deploy.commands import EngineLaunch, ImportOptions, Note, ShellCommand, Word, behind
from ksim.deploy.flags.given import Given, Parser, flag_table, integer, json_of, known_keys, table_of, value_of
from ksim.deploy.flags.meaning import FlagReading, Handler, meaning, names_of, without_older
from ksim.deploy.launching import OF_CHECKPOINT, launch, model_of, model_word, release_of, take_variable
from ksim.deploy.proxies import with_config_file
from ksim.deploy.vllm_line import EPLB
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.files import is_there
from ksim.scenario.models import named
from ksim.specs.configs import KvTransferConfig, LimitMmPerPrompt, MmProcessorKwargs, SpeculativeConfig

__all__ = ["Vllm"]


_GRAPHS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
_PASSES = ("fuse_allreduce_rms", "fi_allreduce_fusion_max_size_mb")
_KERNELS = "how kernels are compiled; ksim's profiles are of those that vLLM compiles by default"
#: CUDA graphs by `-O`'s level, where they are not the default.
_LEVELS: Mapping[str, Mapping[str, Any]] = {"0": {"enforce_eager": True}, "1": {"cudagraph_mode": "PIECEWISE"},
                                            "2": {}, "3": {}}


def _compilation(reading: FlagReading, given: Given) -> None:
    if isinstance(given.value, int | str) and not isinstance(given.value, bool):
        return _level(reading, given)
    table = table_of(given)
    for key in _GRAPHS:
        if table.get(key) is not None:
            reading.serve[key] = _upper(table[key])
    passes = table.get("pass_config") or {}
    for key in _PASSES:
        if passes.get(key) is not None:
            reading.serve[key] = passes[key]
    _older(reading, table)
    others = [key for key in table if key not in (*_GRAPHS, "pass_config", "full_cuda_graph", "use_cudagraph")]
    for key in [*others, *(f"pass_config.{key}" for key in passes if key not in _PASSES)]:
        reading.idle.append(Note(given.where, f"{given.flag.name} {key}", _KERNELS))
    if str(table.get("mode", "")).upper() in ("0", "NONE") and not reading.serve.get("cudagraph_mode"):
        reading.serve["enforce_eager"] = True


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _older(reading: FlagReading, table: Mapping[str, Any]) -> None:
    """Keys of releases before `cudagraph_mode`."""
    if table.get("full_cuda_graph"):
        reading.serve.setdefault("cudagraph_mode", "FULL")
    if table.get("use_cudagraph") is False:
        reading.serve.setdefault("cudagraph_mode", "NONE")


def _level(reading: FlagReading, given: Given) -> None:
    """`-O2`: settings that a level leaves at their defaults stay open."""
    level = str(given.value).removeprefix("O")
    if level not in _LEVELS:
        raise ConfigError(given.where, f"{given.said}: there are levels 0 to 3")
    for key, value in _LEVELS[level].items():
        reading.serve.setdefault(key, value)
    if not _LEVELS[level]:
        reading.pass_over(given, "CUDA graphs and compilation as by default")


COMPILATION: Mapping[str, Handler] = {"compilation_config": _compilation, "optimization_level": _level}


#: vLLM's formats by ksim's names.
_FORMATS = {"fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_channel": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8",
            "fp8_per_block": "fp8_block", "deepseek_v4_fp8": "fp8_block",
            "modelopt_fp4": "modelopt_fp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4",
            **{name: name for name in ("awq", "awq_marlin", "gptq", "gptq_marlin", "bitsandbytes")},
            "auto_awq": "awq", "auto_gptq": "gptq"}


def _quantization(reading: FlagReading, given: Given) -> None:
    method = str(given.value).lower()
    if method in ("none", ""):
        return reading.pass_over(given, "the weights' own format")
    if method not in (*_FORMATS, *OF_CHECKPOINT):
        raise ConfigError(given.where, f"{given.said}: that format is not simulated; ksim has"
                                       f" {', '.join(sorted(_FORMATS))}")
    reading.serve["quantization"] = _FORMATS.get(method, method)


def _max_model_len(reading: FlagReading, given: Given) -> None:
    if given.value == -1:
        return reading.remark(given, "vLLM cuts the context to what fits; here it is that of config.json")
    reading.serve["max_model_len"] = given.value


def _lora_modules(reading: FlagReading, given: Given) -> None:
    reading.serve["lora_modules"] = [adapter(reading, given, text) for text in given.value]


def adapter(reading: FlagReading, given: Given, text: Any) -> dict[str, Any]:
    """An adapter as a scenario has it; without its adapter_config.json at hand, its rank is assumed."""
    name, path = _name_and_path(given, text)
    if path and is_there(Path(path) / "adapter_config.json"):
        return {"name": name, "path": path}
    why = "its adapter_config.json is not here: it gets rank 16, and all modules that adapters may adapt"
    reading.remarks.append(Note(given.where, f"--lora-modules {name}", why))
    return {"name": name, "rank": 16}


def _name_and_path(given: Given, text: Any) -> tuple[str, str]:
    try:
        table = json.loads(text) if isinstance(text, str) and text.lstrip().startswith("{") else text
    except ValueError as error:
        raise ConfigError(given.where, f"--lora-modules is not valid JSON: {error}") from None
    if isinstance(table, Mapping) and table.get("name"):
        return str(table["name"]), str(table.get("path", ""))
    name, equals, path = str(text).partition("=")
    if not equals or not name:
        raise ConfigError(given.where, f"--lora-modules: expected NAME=PATH or JSON with a name and a path, not"
                                       f" {text!r}")
    return name, path


def _eplb(reading: FlagReading, given: Given) -> None:
    table = table_of(given)
    for key, setting in EPLB.items():
        if table.get(key) is not None:
            reading.serve[setting] = _whole(table[key], given)
    if others := [key for key in table if key not in EPLB]:
        reading.remark(given, f"{', '.join(others)}: how EPLB's copies travel and what it logs are not simulated")


def _whole(value: Any, given: Given) -> Any:
    """A whole number, which may be in quotes."""
    try:
        return integer(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ConfigError(given.where, f"{given.flag.name}: {error}") from None


def _limits(reading: FlagReading, given: Given) -> None:
    table = {key: value["count"] if isinstance(value, Mapping) and "count" in value else value
             for key, value in _limit_table(given).items()}
    known = known_keys(given, table, LimitMmPerPrompt, ("audio", "vision_chunk"))
    if known:
        reading.serve["limit_mm_per_prompt"] = known
    if others := [key for key in table if key not in known]:
        reading.remark(given, f"{', '.join(others)}: only images are simulated")


def _limit_table(given: Given) -> dict[str, Any]:
    """The table of `--limit-mm-per-prompt`, which was image=2,video=0 once."""
    if not isinstance(given.value, str):
        return table_of(given)
    pairs = [part.partition("=") for part in given.value.split(",") if part]
    if any(not value.isdecimal() for _, _, value in pairs):
        raise ConfigError(given.where, f"{given.said}: expected JSON such as '{{\"image\": 2}}'")
    return {key: int(value) for key, _, value in pairs}


def _processor(reading: FlagReading, given: Given) -> None:
    reading.serve["mm_processor_kwargs"] = known_keys(given, table_of(given), MmProcessorKwargs)


def overrides(reading: FlagReading, given: Given) -> None:
    """Keys of config.json that a flag overrides, as a table or as its JSON."""
    try:
        read = evolve(given, value=json_of(given.value)) if isinstance(given.value, str) and given.value else given
    except ValueError as error:
        raise ConfigError(given.where, f"{given.flag.name}: {error}") from None
    table = table_of(read)
    if empty := [key for key, value in table.items() if value is None]:
        raise ConfigError(given.where, f"{given.flag.name}: {', '.join(empty)}: null takes a key away, which a scenario"
                                       f" cannot say; take it out of a copy of config.json, and name that with --model")
    if table:
        reading.serve["hf_overrides"] = table


FURTHER: Mapping[str, Handler] = {
    "quantization": _quantization, "max_model_len": _max_model_len, "lora_modules": _lora_modules,
    "eplb_config": _eplb, "limit_mm_per_prompt": _limits, "mm_processor_kwargs": _processor,
    "hf_overrides": overrides}


#: Keys that say where engines are.
_ADDRESSES = ("kv_ip", "kv_port", "kv_rank", "engine_id", "kv_parallel_size", "kv_buffer_size",
              "enable_permute_local_kv")
_ROLES: Mapping[Any, str] = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _config(reading: FlagReading, given: Given) -> None:
    table = known_keys(given, table_of(given), KvTransferConfig)
    if addresses := [key for key in table if key in _ADDRESSES]:
        reading.idle.append(Note(given.where, f"{given.flag.name} {', '.join(addresses)}",
                                 "addresses and buffers of connectors change nothing here"))
    config = {key: value for key, value in table.items() if key not in _ADDRESSES and value != {}}
    if config:
        reading.serve["kv_transfer_config"] = config


def role_of(serve: Mapping[str, Any]) -> str:
    """prefill or decode, where the configuration of transfers says so."""
    return _ROLES.get(serve.get("kv_transfer_config", {}).get("kv_role"), "")


KV_TRANSFER: Mapping[str, Handler] = {"kv_transfer_config": _config}


_BALANCED = "each rank gets the requests that a balancer outside sends it: ksim's `router` chooses among all ranks"
#: Flags that are above zero on every node but the first.
_FURTHER = ("node_rank", "data_parallel_start_rank", "data_parallel_rank")


def _balanced(reading: FlagReading, given: Given) -> None:
    if given.value:
        reading.remark(given, _BALANCED)


def _read_elsewhere(reading: FlagReading, given: Given) -> None:
    """Say nothing of a flag that the program itself reads."""


def _pass_over(why: str, reading: FlagReading, given: Given) -> None:
    reading.pass_over(given, why)


def is_further(given: Sequence[Given]) -> bool:
    """Whether the line starts a further node of an engine that another line starts."""
    return any((one.dest == "headless" and one.value) or (one.dest in _FURTHER and (one.value or 0) > 0)
               for one in given)


def balances_itself(given: Sequence[Given]) -> bool:
    """Whether vLLM's own balancer chooses among data-parallel ranks."""
    outside = ("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb",
               "data_parallel_rank")
    return not any(one.dest in outside and one.value not in (None, False) for one in given)


NODES: Mapping[str, Handler] = {
    **dict.fromkeys(("data_parallel_size_local", "headless", "nnodes", *_FURTHER),
                    partial(_pass_over, "ksim places ranks on nodes by itself")),
    **dict.fromkeys(("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb"),
                    _balanced),
    "port": partial(_pass_over, "addresses, ports and certificates change no schedule"),
    **dict.fromkeys(("model", "config"), _read_elsewhere)}


#: Keys of vLLM's that change nothing here.
_IDLE = ("draft_load_config", "disable_logprobs", "acceptance_method", "typical_acceptance_sampler_posterior_threshold",
         "typical_acceptance_sampler_posterior_alpha", "token_map", "trust_remote_code", "disable_by_batch_size",
         "rejection_sampler", "enable_multi_layers_mtp")
#: What is assumed of drafts: chances that a token is accepted if those before it are.
ACCEPTANCE = 0.7
_MADE_UP = (f"MADE UP: no line says how many drafted tokens are accepted; {ACCEPTANCE:g} each stands for it.  Set"
            " serve.speculative_config.acceptance to what your engine's log prints (docs/speculation.md)")


def _speculative_config(reading: FlagReading, given: Given) -> None:
    table = known_keys(given, table_of(given), SpeculativeConfig, _IDLE)
    _add(reading, given, table)


def _add(reading: FlagReading, given: Given, table: Mapping[str, Any]) -> None:
    if not table:
        return
    config = {**reading.serve.get("speculative_config", {}), **table}
    if "model" in table and table["model"] not in ("ngram", "[ngram]"):
        config["model"] = drafter(str(table["model"]), given)
    reading.serve["speculative_config"] = config


def _part(key: str, reading: FlagReading, given: Given) -> None:
    """One of `--spec-method`, `--spec-model` and `--spec-tokens`."""
    _add(reading, given, {key: given.value})


def drafter(text: str, given: Given) -> str:
    """The drafter that *text* names: a head of `ksim list drafters`, or a model; raises ConfigError for others."""
    heads = _heads()
    stem = text.rpartition("/")[2].lower()
    if stem in heads:
        return heads[stem]
    if catalog.is_file(text):
        return text
    try:
        return named(text, given.where, remedy="a path in its place, such as").name
    except ConfigError:
        known = ", ".join(catalog.entries("drafters"))
        raise ConfigError(given.where, f"{given.flag.name}: no drafter of the catalogue is {text!r}; it has {known};"
                                       f" name the config.json of yours") from None


@cache
def _heads() -> Mapping[str, str]:
    heads = {name: catalog.load("drafters", name) for name in catalog.entries("drafters")}
    return {**{name: name for name in heads},
            **{str(head.get("_name_or_path", name)).rpartition("/")[2].lower(): name for name, head in heads.items()}}


def with_acceptance(reading: FlagReading, where: str) -> None:
    """Fill in an acceptance where speculation has none."""
    config = reading.serve.get("speculative_config")
    if config and not config.keys() & {"acceptance", "synthetic_acceptance_rates", "synthetic_acceptance_length"}:
        config["acceptance"] = {"name": "geometric", "rate": ACCEPTANCE}
        reading.remarks.append(Note(where, "acceptance", _MADE_UP))


SPECULATION: Mapping[str, Handler] = {
    "speculative_config": _speculative_config, "spec_method": partial(_part, "method"),
    "spec_model": partial(_part, "model"),
    "spec_tokens": partial(_part, "num_speculative_tokens")}


_STARTS = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"), ("-m", "vllm.entrypoints.api_server"),
           ("-m", "vllm.entrypoints.cli.main", "serve"), ("api_server.py",))
HANDLERS: Mapping[str, Handler] = {**COMPILATION, **FURTHER, **KV_TRANSFER,
                                   **NODES, **SPECULATION}
#: Releases that fuse by themselves what ksim leaves apart (config/vllm.py: enable_allreduce_rms_fusion, from -O2 on).
_FUSING = ("vllm-0.22", "vllm-0.33")
_FUSED = ("not set: vLLM fuses small all-reduces with the norm after them by default, on Hopper and Blackwell where"
          " FlashInfer is installed; serve.fuse_allreduce_rms = true does so here")


class Vllm:
    """Reads the flags of `vllm serve`."""

    def recognises(self, command: ShellCommand) -> bool:
        return _arguments(command) is not None

    def launch(self, command: ShellCommand, wanted: ImportOptions) -> EngineLaunch:
        """The engine that *command* starts; raises ConfigError for what vLLM or ksim would refuse."""
        words = _level_spelt_out(with_config_file(command, _arguments(command) or []))
        words, older = without_older("vllm", words)
        parser = Parser(flag_table("vllm", "vLLM"), names_of("vllm"), meaning("vllm").is_idle)
        given = parser.read(words)
        release = release_of("vllm", command, wanted)
        model, assumed = model_of(command, wanted, model_word(parser, given))
        reading = FlagReading(meaning("vllm"), HANDLERS)
        reading.take(given)
        _environment(reading, command)
        with_acceptance(reading, command.where)
        _defaults(reading, given, release.engine)
        return launch(command, release, model, reading, role=role_of(reading.serve),
                      replicas=0 if is_further(given) else 1, ports=(int(value_of(given, "port", 8000)),),
                      scenario=_scenario(reading, given), remarks=(*assumed, *older))


def _arguments(command: ShellCommand) -> list[Word] | None:
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


def _environment(reading: FlagReading, command: ShellCommand) -> None:
    """The variables that change a schedule."""
    word = command.environment.get("VLLM_ALL2ALL_BACKEND")
    known = reading.meaning.values["all2all_backend"].known
    if word is not None and "all2all_backend" not in reading.serve and word.known().text in known:
        reading.serve["all2all_backend"] = known[word.text]
        reading.remarks.append(Note(word.where, f"VLLM_ALL2ALL_BACKEND={word.text}", "taken as --all2all-backend"))
    word = command.environment.get("VLLM_DBO_COMM_SMS")
    if word is not None and reading.serve.get("enable_dbo"):
        if not word.known().text.isdecimal():
            raise ConfigError(word.where, f"VLLM_DBO_COMM_SMS={word.text} is no number of SMs; set one such as 20")
        reading.serve["dbo_comm_sms"] = int(word.text)
        reading.remarks.append(Note(word.where, f"VLLM_DBO_COMM_SMS={word.text}", "taken as dbo_comm_sms"))
    take_variable(reading, command, ("VLLM_DEEPEPLL_NVFP4_DISPATCH",), "moe_nvfp4_dispatch")


def _defaults(reading: FlagReading, given: Sequence[Given], engine: str) -> None:
    """Say which default of the release ksim does not take over."""
    serve = reading.serve
    optimized = not serve.get("enforce_eager") and str(value_of(given, "optimization_level", 2)) not in ("0", "1")
    fuses = engine in _FUSING and optimized and serve.get("tensor_parallel_size", 1) > 1
    if fuses and "fuse_allreduce_rms" not in serve:
        reading.remarks.append(Note("", "fuse_allreduce_rms", _FUSED))


def _scenario(reading: FlagReading, given: Sequence[Given]) -> dict[str, Any]:
    """Keys beside `serve`: vLLM balances its data-parallel ranks itself."""
    if reading.serve.get("data_parallel_size", 1) == 1 or not balances_itself(given):
        return {}
    reading.remarks.append(Note("", "router = vllm_dp_balancer", "vLLM's own balancer of data-parallel ranks"))
    servers = value_of(given, "api_server_count")
    return {"router": {"name": "vllm_dp_balancer", "client_count": servers} if servers else "vllm_dp_balancer"}

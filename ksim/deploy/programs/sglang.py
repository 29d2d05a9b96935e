"""SGLang: `python -m sglang.launch_server`, `sglang serve`, and the flags that depend on each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from ksim.deploy.commands import EngineLaunch, ImportOptions, Note, ShellCommand, Word, behind
from ksim.deploy.flags.given import Given, Parser, flag_table, value_of, where_of
from ksim.deploy.flags.meaning import FlagReading, Handler, meaning, names_of, read_with_others, without_older
from ksim.deploy.launching import launch, model_of, model_word, release_of, take_variable
from ksim.deploy.programs import vllm
from ksim.deploy.programs.vllm import drafter, with_acceptance
from ksim.deploy.proxies import with_config_file
from ksim.foundation.errors import ConfigError
from ksim.specs.sglang import SCHEDULE_POLICIES

__all__ = ["Sglang"]


#: Keys of ksim's connector, which are the flags' names.
_KEYS = ("hicache_ratio", "hicache_size", "hicache_write_policy", "hicache_io_backend", "hicache_mem_layout",
         "hicache_storage_backend", "hicache_storage_prefetch_policy", "hicache_storage_backend_extra_config")
#: Flags that are read together.
HICACHE_FLAGS = (*_KEYS, "enable_hierarchical_cache", "hicache_host_memory_mode", "hicache_host_memory_fraction",
                 "hicache_storage_prefetch_retry_poll_interval", "hicache_storage_prefetch_retry_max_attempts")


def hierarchical(given: Sequence[Given]) -> dict[str, Any]:
    """The connector that `--enable-hierarchical-cache` stands for; empty without it."""
    if not value_of(given, "enable_hierarchical_cache"):
        return {}
    options = {key: value for key in _KEYS if (value := value_of(given, key)) is not None}
    if "hicache_storage_backend" in options and (page := value_of(given, "page_size")):
        options["page_size"] = page
    return {"kv_connector": "HiCache", "kv_role": "kv_both", "kv_connector_extra_config": options}


#: Flags that are read together.
PARALLEL_FLAGS = ("tp_size", "dp_size", "attn_dp_size", "enable_dp_attention", "ep_size", "moe_a2a_backend",
                  "deepep_mode", "nnodes", "node_rank", "enable_two_batch_overlap")
#: The default of `--eplb-rebalance-num-iterations`, which is that of `--expert-distribution-recorder-buffer-size`, too.
REBALANCED = 1000
#: Variables by which SGLang sends tokens in NVFP4, by their new name and the old one.
NVFP4_DISPATCH = ("SGLANG_MOE_NVFP4_DISPATCH", "SGLANG_CUTEDSL_MOE_NVFP4_DISPATCH")
#: Exchanges of tokens that DeepEP's kernels stand for.
_LIKE_DEEPEP = ("deepep", "deepep_v2", "mooncake", "nixl", "pplx", "megamoe")


@frozen
class Division:
    """How the GPUs of one engine share the work."""

    serve: dict[str, Any]
    replicas: int
    remarks: tuple[tuple[str, str], ...]


def division(given: Sequence[Given], role: str) -> Division:
    """What the flags of parallelism say; raises ConfigError where groups do not come out even."""
    tp, dp = value_of(given, "tp_size", 1), value_of(given, "dp_size", 1)
    attention = value_of(given, "attn_dp_size", 1)
    groups = dp if value_of(given, "enable_dp_attention") else attention
    if groups < 1 or tp % groups:
        where = where_of(given, "dp_size", where_of(given, "attn_dp_size"))
        raise ConfigError(where, f"{groups} groups of data-parallel attention do not divide {tp} GPUs")
    replicas = 1 if value_of(given, "enable_dp_attention") else dp
    serve: dict[str, Any] = {"tensor_parallel_size": tp // groups, "data_parallel_size": groups}
    serve = {key: value for key, value in serve.items() if value != 1}
    experts, remarks = _experts(given, tp, groups, role)
    halves, said = _micro_batches(given)
    return Division({**serve, **experts, **halves}, replicas, (*remarks, *said))


def _micro_batches(given: Sequence[Given]) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """SGLang cuts each step of two tokens and more (srt/batch_overlap/two_batch_overlap.py)."""
    if not value_of(given, "enable_two_batch_overlap"):
        return {}, ()
    return ({"enable_dbo": True, "dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 2},
            (("--enable-two-batch-overlap", "two micro-batches that change over where vLLM's do, at dispatch and"
                                            " combine"),))


def _experts(given: Sequence[Given], tp: int, groups: int,
             role: str) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    backend, size = value_of(given, "moe_a2a_backend", "none"), value_of(given, "ep_size", 1)
    if backend in _LIKE_DEEPEP:
        mode = value_of(given, "deepep_mode", "auto")
        fast = mode == "low_latency" or (mode == "auto" and role == "decode")
        kind = {"all2all_backend": f"deepep_{'low_latency' if fast else 'high_throughput'}"} if groups > 1 else {}
        said = (f"--moe-a2a-backend {backend}",
                f"DeepEP's kernels for {'few' if fast else 'many'} tokens, and one GPU a group of experts")
        return {"enable_expert_parallel": True, **kind}, (said,)
    if size == 1:
        return {}, ()
    return {"enable_expert_parallel": True, **({"expert_parallel_size": size} if size != tp else {})}, ()


#: Flags that are read together.
GRAPH_FLAGS = ("disable_cuda_graph", "disable_decode_cuda_graph", "cuda_graph_backend_decode",
               "cuda_graph_backend_prefill", "disable_prefill_cuda_graph")
#: Orders of the queue that ksim lacks, and why.
_POLICIES = {"routing-key": "ksim's requests have no routing keys",
             "priority": "it is --enable-priority-scheduling that orders requests by priority"}


def _graphs(given: Sequence[Given]) -> dict[str, Any]:
    if value_of(given, "disable_cuda_graph"):
        return {"enforce_eager": True}
    if value_of(given, "disable_decode_cuda_graph") or value_of(given, "cuda_graph_backend_decode") == "disabled":
        return {"cudagraph_mode": "NONE"}
    if value_of(given, "disable_prefill_cuda_graph") or value_of(given, "cuda_graph_backend_prefill") == "disabled":
        return {"cudagraph_mode": "FULL_DECODE_ONLY"}
    return {}


def _chunk(reading: FlagReading, given: Given) -> None:
    reading.set("sglang.chunked_prefill_size", given.value if given.value is None or given.value > 0 else -1)


def _policy(reading: FlagReading, given: Given) -> None:
    if given.value in _POLICIES:
        raise ConfigError(given.where, f"{given.said} is not simulated: {_POLICIES[given.value]}; ksim has"
                                       f" {', '.join(SCHEDULE_POLICIES)}")
    reading.set("sglang.schedule_policy", given.value)


#: Flags that are read together.
DRAFT_FLAGS = ("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps",
               "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_draft_model_quantization",
               "speculative_draft_kv_cache_dtype")
_METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram"}
#: Drafts that SGLang chooses for models with heads of their own where no flag says it (server_args.py).
_STEPS = 3


def speculation(given: Sequence[Given]) -> dict[str, Any]:
    """The table of drafts; empty without any.  Raises ConfigError for algorithms and trees that are not simulated."""
    by_flag = {one.dest: one for one in given}
    algorithm = by_flag.get("speculative_algorithm")
    if algorithm is None or str(algorithm.value).lower() == "none":
        return {}
    if str(algorithm.value).upper() not in _METHODS:
        raise ConfigError(algorithm.where, f"{algorithm.said} is not simulated; ksim has {', '.join(_METHODS)}")
    _check_chain(by_flag.get("speculative_eagle_topk"))
    method = _METHODS[str(algorithm.value).upper()]
    draft = by_flag.get("speculative_draft_model_path")
    if method == "eagle" and draft is None:
        method = "mtp"
    table: dict[str, Any] = {"method": method, "num_speculative_tokens": _tokens(given, method)}
    if draft is not None and method != "mtp":
        table["model"] = drafter(str(draft.value), draft)
    return table


def _tokens(given: Sequence[Given], method: str) -> int:
    drafted = value_of(given, "speculative_num_draft_tokens")
    steps = value_of(given, "speculative_num_steps")
    if method == "ngram":
        return int(drafted or 12)
    return int(steps or (drafted - 1 if drafted and drafted > 1 else _STEPS))


def _check_chain(topk: Given | None) -> None:
    if topk is not None and topk.value > 1:
        raise ConfigError(topk.where, f"{topk.said}: trees of drafts are not simulated; chains are,"
                                      f" --speculative-eagle-topk 1")


_STARTS = (("-m", "sglang.launch_server"), ("sglang", "serve"), ("sglang.launch_server",), ("launch_server.py",))
#: Formats that SGLang names otherwise than vLLM.
_FORMATS = {"modelopt_fp8": "fp8", "w8a8_fp8": "fp8", "modelopt": "fp8", "petit_nvfp4": "nvfp4",
            "w8a8_int8": "int8_w8a8", "w4afp8": ""}
_ROLES: Mapping[Any, str] = {"prefill": "prefill", "decode": "decode"}
_TOGETHER = (*PARALLEL_FLAGS, *GRAPH_FLAGS, *DRAFT_FLAGS, *HICACHE_FLAGS)
_READ = ("model_path", "config", "disaggregation_mode", "disaggregation_transfer_backend", "port")


def _quantization(reading: FlagReading, given: Given) -> None:
    name = _FORMATS.get(str(given.value))
    if name == "":
        raise ConfigError(given.where, f"{given.said}: that format is not simulated")
    if name:
        reading.serve["quantization"] = name
    else:
        vllm.FURTHER["quantization"](reading, given)


def _adapters(reading: FlagReading, given: Given) -> None:
    names = [text if "=" in str(text) or str(text).startswith("{") else f"{text}={text}" for text in given.value]
    texts = [text.replace('"lora_name"', '"name"').replace('"lora_path"', '"path"') for text in names]
    reading.serve["lora_modules"] = [vllm.adapter(reading, given, text) for text in texts]
    reading.serve.setdefault("enable_lora", True)


HANDLERS: Mapping[str, Handler] = {**dict.fromkeys((*_TOGETHER, *_READ), read_with_others),
                                   "quantization": _quantization, "lora_paths": _adapters,
                                   "json_model_override_args": vllm.overrides, "schedule_policy": _policy,
                                   "chunked_prefill_size": _chunk}


class Sglang:
    """Reads the flags of SGLang's server."""

    def recognises(self, command: ShellCommand) -> bool:
        return _arguments(command) is not None

    def launch(self, command: ShellCommand, wanted: ImportOptions) -> EngineLaunch:
        """The engine that *command* starts; raises ConfigError for what SGLang or ksim would refuse."""
        words, older = without_older("sglang", with_config_file(command, _arguments(command) or []))
        parser = Parser(flag_table("sglang", "SGLang"), names_of("sglang"), meaning("sglang").is_idle)
        given = parser.read(words)
        model, assumed = model_of(command, wanted, model_word(parser, given, "model_path"))
        role = _ROLES.get(value_of(given, "disaggregation_mode"), "both")
        reading = FlagReading(meaning("sglang"), HANDLERS)
        reading.take(given)
        replicas = self._together(reading, given, role)
        take_variable(reading, command, NVFP4_DISPATCH, "moe_nvfp4_dispatch")
        with_acceptance(reading, command.where)
        return launch(command, release_of("sglang", command, wanted), model, reading, role=role,
                      replicas=0 if value_of(given, "node_rank", 0) > 0 else replicas, remarks=(*assumed, *older),
                      ports=(int(value_of(given, "port", 30000)),), hardware={"host": _host(role)})

    def _together(self, reading: FlagReading, given: Sequence[Given], role: str) -> int:
        """Take in the flags that depend on each other; how many copies of the engine there are."""
        parts = division(given, role)
        reading.serve = {**_graphs(given), **parts.serve, **reading.serve}
        if drafts := speculation(given):
            reading.serve["speculative_config"] = drafts
            _count_drafts(reading.serve, 1 + drafts["num_speculative_tokens"])
        if tiers := hierarchical(given):
            reading.serve["kv_transfer_config"] = tiers
        elif role != "both":
            reading.serve["kv_transfer_config"] = {"kv_connector": "sglang"}
        if reading.serve.get("enable_eplb"):  # the loads of all steps since the last time
            every = reading.serve.setdefault("eplb_step_interval", REBALANCED)
            reading.serve.setdefault("eplb_window_size", every)
        notes = [*parts.remarks, *_of_deepep(reading)]
        reading.remarks += [Note("", what, why) for what, why in notes]
        return parts.replicas


def _count_drafts(serve: dict[str, Any], width: int) -> None:
    """Turn graphs' numbers of sequences, each of *width* tokens, into those of tokens, as vLLM has them."""
    if largest := serve.get("max_cudagraph_capture_size"):
        serve["max_cudagraph_capture_size"] = largest * width
    if sizes := serve.get("cudagraph_capture_sizes"):
        serve["cudagraph_capture_sizes"] = [size * width for size in sizes]


def _of_deepep(reading: FlagReading) -> list[tuple[str, str]]:
    """Leave out what SGLang ignores without DeepEP's low-latency kernels."""
    if reading.serve.get("all2all_backend") == "deepep_low_latency" or not reading.serve.pop(
            "enable_single_batch_overlap", False):
        return []
    return [("--enable-single-batch-overlap", "nothing to overlap without DeepEP's low-latency kernels")]


def _arguments(command: ShellCommand) -> list[Word] | None:
    return behind(command.words, _STARTS)


def _host(role: str) -> str:
    return "sglang" if role == "both" else "sglang-disaggregated"

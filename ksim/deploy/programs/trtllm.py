"""TensorRT-LLM: `trtllm-serve MODEL`, with the YAML of its LLM API, whose keys may be tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ksim.deploy.commands import EngineLaunch, ImportOptions, Note, ShellCommand, behind
from ksim.deploy.flags.given import (
    Flag,
    Given,
    Parser,
    flag_table,
    is_open,
    of_kind,
    refuse_open,
    table_of,
    value_of,
    word_of,
)
from ksim.deploy.flags.meaning import FlagReading, Handler, meaning, read_with_others
from ksim.deploy.launching import launch, model_of, model_word, release_of
from ksim.deploy.programs.vllm import drafter, with_acceptance
from ksim.deploy.proxies import keys_in
from ksim.deploy.texts import Entry
from ksim.foundation.errors import ConfigError, did_you_mean
from ksim.scenario.models import model_of as known_model

__all__ = ["Trtllm"]


_CACHE = {"enable_block_reuse": "enable_prefix_caching", "tokens_per_block": "block_size"}
_CACHE_IDLE = ("enable_partial_reuse", "copy_on_partial_reuse", "event_buffer_max_size", "free_gpu_memory_fraction",
               "cross_kv_cache_fraction", "secondary_offload_min_priority", "onboard_blocks",
               "attention_dp_events_gather_period_ms", "use_uvm", "mamba_ssm_cache_dtype", "use_kv_cache_manager_v2",
               "max_util_for_resume")
#: Keys that change the cache, and not ksim's.
_CACHE_DIFFERS = {"max_gpu_total_bytes": "the cache is as large as free_gpu_memory_fraction or max_tokens says",
                  "max_attention_window": "windows are those of the model's config.json",
                  "sink_token_length": "tokens that stay before a window are not simulated"}
_DRAFTS = {"MTP": "mtp", "EAGLE": "eagle3", "EAGLE3": "eagle3", "NGRAM": "ngram", "DRAFT_TARGET": "draft_model",
           "DRAFTTARGET": "draft_model"}
#: Keys of the number of drafts, by method.
_COUNTS = ("num_nextn_predict_layers", "max_draft_len")


#: Kinds of keys of the YAML alone, and of kv_cache_config, that are numbers or switches.
KINDS = {"enable_attention_dp": "switch", "disable_overlap_scheduler": "switch", "moe_tensor_parallel_size": "integer",
         "batch_wait_timeout_iters": "integer", "batch_wait_max_tokens_ratio": "number",
         "free_gpu_memory_fraction": "number", "max_tokens": "integer", "tokens_per_block": "integer",
         "host_cache_size": "integer", "enable_block_reuse": "switch"}


def read_as(kind: str, value: Any, where: str, key: str) -> Any:
    """The *value* of a *key* of the YAML; raises ConfigError for one of another *kind*."""
    try:
        return of_kind(kind, value)
    except ValueError as error:
        raise ConfigError(where, f"{key}: {error}") from None


def cache_table(given: Given) -> dict[str, Any]:
    """The keys of kv_cache_config, without those that are left empty; raises ConfigError for values that cannot be."""
    return {key: read_as(KINDS.get(key, "json"), value, given.where, f"kv_cache_config.{key}")
            for key, value in table_of(given).items() if value is not None}


def _cache(reading: FlagReading, given: Given) -> None:
    table = cache_table(given)
    page = table.get("tokens_per_block", 32)
    if page < 1:
        raise ConfigError(given.where, f"kv_cache_config.tokens_per_block: expected at least 1, not {page}")
    if (kind := table.pop("dtype", "auto")) not in ("auto", "fp8"):
        raise ConfigError(given.where, f"kv_cache_config.dtype {kind!r} is not simulated; ksim has auto, fp8")
    if kind == "fp8":
        reading.serve["kv_cache_dtype"] = "fp8"
    for key, value in table.items():
        if key in _CACHE:
            reading.serve[_CACHE[key]] = value
        elif key == "host_cache_size" and value:
            reading.serve["kv_offloading_size"] = value / 2**30
            reading.remarks.append(Note(given.where, key, "host memory behind the cache, by vLLM's rules"))
        elif key == "max_tokens" and value:
            reading.serve["num_gpu_blocks_override"] = value // page
        elif key in _CACHE_DIFFERS and value:
            reading.remarks.append(Note(given.where, f"kv_cache_config.{key}", _CACHE_DIFFERS[key]))
        elif key in _CACHE_IDLE or key in _CACHE_DIFFERS:
            reading.idle.append(Note(given.where, f"kv_cache_config.{key}", "changes nothing here, or is read above"))
        elif value:
            raise ConfigError(given.where, f"kv_cache_config.{key} is no key that ksim knows")


def _graphs(reading: FlagReading, given: Given) -> None:
    if given.value is None:
        reading.serve["cudagraph_mode"] = "NONE"
        return
    table = table_of(given)
    if table.get("batch_sizes"):
        reading.serve["cudagraph_capture_sizes"] = table["batch_sizes"]
    elif table.get("max_batch_size"):
        reading.serve["max_cudagraph_capture_size"] = table["max_batch_size"]


def _speculation(reading: FlagReading, given: Given) -> None:
    table = table_of(given)
    method = _DRAFTS.get(str(table.get("decoding_type", "")).upper().replace("-", "_"))
    count = next((table[key] for key in _COUNTS if table.get(key)), None)
    if method is None or count is None:
        raise ConfigError(given.where, f"speculative_config: decoding_type {table.get('decoding_type')!r} with"
                                       f" {count or 'no'} drafts is not simulated; ksim has {', '.join(_DRAFTS)}")
    config = {"method": method, "num_speculative_tokens": count}
    model = table.get("speculative_model_dir") or table.get("speculative_model")
    if model and method != "mtp":
        config["model"] = drafter(str(model), given)
    reading.serve["speculative_config"] = config


def _scheduler(reading: FlagReading, given: Given) -> None:
    policy = table_of(given).get("capacity_scheduler_policy", "GUARANTEED_NO_EVICT")
    if policy not in ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION"):
        raise ConfigError(given.where, f"capacity_scheduler_policy {policy!r} is not simulated; ksim has"
                                       f" GUARANTEED_NO_EVICT, MAX_UTILIZATION")
    if policy == "MAX_UTILIZATION":
        reading.serve["admission"] = "always"


def _overlap(reading: FlagReading, given: Given) -> None:
    if given.value:
        reading.serve["async_scheduling"] = False


def _experts(reading: FlagReading, given: Given) -> None:
    reading.pass_over(given, "a choice of kernels; for DeepGEMM's, --version trtllm-1.2-deepgemm")


def _lora(reading: FlagReading, given: Given) -> None:
    table = table_of(given)
    reading.serve["enable_lora"] = True
    for key, setting in (("max_lora_rank", "max_lora_rank"), ("max_loras", "max_loras"),
                         ("max_cpu_loras", "max_cpu_loras")):
        if table.get(key):
            reading.serve[setting] = table[key]


HANDLERS: Mapping[str, Handler] = {
    "kv_cache_config": _cache, "cuda_graph_config": _graphs, "speculative_config": _speculation,
    "scheduler_config": _scheduler, "disable_overlap_scheduler": _overlap, "moe_config": _experts, "lora_config": _lora,
    **dict.fromkeys(("tensor_parallel_size", "moe_expert_parallel_size", "enable_attention_dp", "max_beam_width",
                     "free_gpu_memory_fraction", "extra_llm_api_options", "server_role", "cache_transceiver_config",
                     "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio",
                     "moe_tensor_parallel_size"), read_with_others)}
#: Keys that are of the YAML alone.
TABLES = tuple(key for key in HANDLERS if key.endswith("_config"))


def division(given: Sequence[Given]) -> dict[str, Any]:
    """How the GPUs share the work: with data-parallel attention, each holds the attention of its own requests."""
    size, experts = value_of(given, "tensor_parallel_size", 1), value_of(given, "moe_expert_parallel_size")
    key = "data_parallel_size" if value_of(given, "enable_attention_dp") else "tensor_parallel_size"
    whole = bool(experts and experts > 1)
    return {**({key: size} if size != 1 else {}), **({"enable_expert_parallel": True} if whole else {}),
            **({"expert_parallel_size": experts} if whole and experts != size else {})}


def waiting(given: Sequence[Given]) -> dict[str, Any]:
    """The policy under which prompts wait until they fill a step."""
    rounds, ratio = value_of(given, "batch_wait_timeout_iters", 0), value_of(given, "batch_wait_max_tokens_ratio", 0)
    if not rounds or not ratio:
        return {}
    budget = value_of(given, "max_num_tokens", 8192)
    return {"scheduling_policy": {"name": "batch_wait", "budget": budget, "ratio": ratio, "iterations": rounds}}


def fit_prompts(reading: FlagReading, context: int) -> None:
    """Let a step take the longest prompt where prompts are not cut; the model has a *context* of so many tokens.

    TensorRT-LLM refuses prompts above max_num_tokens then, and ksim has one limit, of prompt and output together.
    """
    serve = reading.serve
    step, longest = serve.get("max_num_batched_tokens", 8192), serve.get("max_model_len")
    if serve.get("enable_chunked_prefill") or (longest or context) <= step:
        return
    if longest is None:
        serve["max_model_len"] = step
        why = f"without chunked context no prompt above {step} tokens is served: requests are limited to as many"
        reading.remarks.append(Note("", "max_seq_len", why))
    else:
        serve["max_num_batched_tokens"] = longest
        why = f"raised from {step} to max_seq_len: without chunked context, ksim's steps take the longest request"
        reading.remarks.append(Note("", "max_num_tokens", why))


_STARTS = (("trtllm-serve",), ("-m", "tensorrt_llm.commands.serve"))
#: Other commands of trtllm-serve's.
_OTHERS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "grpc")
_ROLES = {"CONTEXT": "prefill", "GENERATION": "decode"}


class Trtllm:
    """Reads the options of `trtllm-serve` and its YAML."""

    def recognises(self, command: ShellCommand) -> bool:
        words = behind(command.words, _STARTS)
        return words is not None and not (words and words[0].text in _OTHERS)

    def launch(self, command: ShellCommand, wanted: ImportOptions) -> EngineLaunch:
        """The engine that *command* starts; raises ConfigError for what TensorRT-LLM or ksim would refuse."""
        words = behind(command.words, _STARTS) or []
        words = words[1:] if words and words[0].text == "serve" else words
        parser = Parser(flag_table("trtllm", "TensorRT-LLM"), idle=meaning("trtllm").is_idle)
        given = self._with_yaml(parser.read(words), command)
        model, assumed = model_of(command, wanted, model_word(parser, given))
        reading = FlagReading(meaning("trtllm"), HANDLERS)
        reading.serve = {"admission": "reserve_output", "enable_chunked_prefill": False,
                         "cudagraph_mode": "FULL_DECODE_ONLY", **division(given), **waiting(given)}
        reading.take(given)
        fit_prompts(reading, known_model(model.name).max_length)
        role = _role(given)
        if role in ("prefill", "decode"):
            reading.serve["kv_transfer_config"] = {"kv_connector": "tensorrt_llm"}
        with_acceptance(reading, command.where)
        return launch(command, release_of("trtllm", command, wanted), model, reading, role=role, remarks=assumed,
                      ports=(int(value_of(given, "port", 8000)),), hardware={"host": "trtllm"},
                      free_share=_free_share(given))

    def _with_yaml(self, given: list[Given], command: ShellCommand) -> list[Given]:
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
        if plain is not None or key in TABLES:  # an empty key is left out, but a table may be switched off so
            if is_open(str(plain)) and not meaning("trtllm").is_idle(key):
                refuse_open(str(plain), value.place)
            free = plain is None or is_open(str(plain))
            read = plain if free else read_as(flag.kind, plain, value.place, key)
            yield Given(flag, read, f"{key}: {plain}", value.place, is_open(str(plain)))


def _flag(name: str, where: str) -> Flag:
    """The option, or the key of the LLM API alone; raises ConfigError for one that is not known."""
    table = {flag.dest: flag for flag in flag_table("trtllm", "TensorRT-LLM").flags}
    if name in table:
        return table[name]
    means = meaning("trtllm")
    if name in HANDLERS or name in means.keys or name in means.values or means.kinds(name):
        return Flag(name, (name,), KINDS.get(name, "json"))
    known = [*table, *HANDLERS, *(flag for group in (*means.idle, *means.refused) for flag in group.flags)]
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
    table = cache_table(said["kv_cache_config"]) if "kv_cache_config" in said else {}
    share = table.get("free_gpu_memory_fraction", value_of(given, "free_gpu_memory_fraction"))
    if share is None:
        return None
    if not 0 <= share <= 1:
        where = said["kv_cache_config" if "free_gpu_memory_fraction" in table else "free_gpu_memory_fraction"].where
        raise ConfigError(where, f"free_gpu_memory_fraction: expected 0 to 1, not {share}")
    return float(share)

"""What SGLang's ServerArgs makes of settings that are left open, and what vLLM's settings are called there.

`SglangServer` derives them in SGLang's order (0.5.23, srt/arg_groups/pipeline.py): sizes by GPU memory come first, then
what the model and its attention kernels ask for; how many requests may run follows from the KV cache.  The settings
that all engines have, such as `max_num_batched_tokens`, follow from these.  Where releases differ, `EngineVersion` says
so.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from attrs import evolve, fields_dict, frozen

from ksim.compute.model import Model
from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.scenario.sizing import of_static, sglang_pool, shards_of
from ksim.specs.hardware import Gpu
from ksim.specs.settings import EngineSettings, EngineVersion
from ksim.specs.sglang import SglangSettings

__all__ = ["VLLM_KEYS", "Row", "SglangServer", "check_followed", "check_scheduler", "decode_graphs", "prefill_graphs"]

#: A setting, its value, and where it comes from.
Row = tuple[str, Any, str]

MIB = 2.0**20
#: Settings of vLLM's scheduler and cache, and what to set in place of them.
VLLM_KEYS: Mapping[str, str] = {
    "max_num_batched_tokens": "chunked_prefill_size", "max_num_seqs": "max_running_requests",
    "max_num_active_seqs": "max_running_requests", "max_model_len": "context_length", "block_size": "page_size",
    "enable_prefix_caching": "disable_radix_cache", "prefix_cache": "disable_radix_cache",
    "enable_chunked_prefill": "chunked_prefill_size", "long_prefill_token_threshold": "chunked_prefill_size",
    "long_prefill_token_threshold_adaptive": "chunked_prefill_size", "async_scheduling": "disable_overlap_schedule",
    "gpu_memory_utilization": "mem_fraction_static", "num_gpu_blocks_override": "max_total_tokens",
    "eviction": "radix_eviction_policy", "watermark": "schedule_conservativeness",
    "admission": "schedule_conservativeness", "scheduler_reserve_full_isl": "schedule_conservativeness",
    "prefill_schedule_interval": "prefill_decode_interval",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_swa_memory", "scheduling_policy": "schedule_policy",
}
#: What vLLM calls settings of SGLang's, where one corresponds.
_OF_VLLM: Mapping[str, str] = {
    "chunked_prefill_size": "max_num_batched_tokens", "max_prefill_tokens": "max_num_batched_tokens",
    "max_running_requests": "max_num_seqs", "context_length": "max_model_len", "page_size": "block_size",
    "mem_fraction_static": "gpu_memory_utilization", "max_total_tokens": "num_gpu_blocks_override",
    "disable_radix_cache": "enable_prefix_caching", "disable_overlap_schedule": "async_scheduling",
    "schedule_policy": "scheduling_policy", "enable_priority_scheduling": "scheduling_policy",
    "radix_eviction_policy": "eviction", "prefill_decode_interval": "prefill_schedule_interval",
    "disable_hybrid_swa_memory": "disable_hybrid_kv_cache_manager",
}
#: Models for which TRT-LLM's MLA kernels are the default on Blackwell (model_overrides/deepseek_v2.py).
_TRTLLM_MLA = ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM",
               "PixtralForConditionalGeneration", "LongcatFlashForCausalLM")
#: Models with DeepSeek's sparse attention, whose pages have 64 tokens everywhere.
_SPARSE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
#: Models with states whose attention on Blackwell is not TRT-LLM's (model_overrides: qwen3_5.py, falcon_h1.py, lfm2.py;
#: granite and Kimi Linear by get_default_attn_backend).
_PAGES_OF_ONE = ("Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
                 "FalconH1ForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
#: Models whose windows have a pool of their own (configs/model_config.py, is_hybrid_swa_model).
_WINDOW_POOLS = ("Llama4ForConditionalGeneration", "GptOssForCausalLM", "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM",
                 "Step3p5ForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "DeepseekV4ForCausalLM")
#: Models that take images and whose prompts run in graphs all the same: layers and hidden size of their encoders, of
#: which ksim knows nothing else.
_ENCODERS = {"Qwen3_5MoeForConditionalGeneration": (24, 1152), "Qwen3_5ForConditionalGeneration": (24, 1152),
             "KimiK25ForConditionalGeneration": (27, 1152)}
#: Models that take images, of which SGLang counts none unless told to.
_TEXT_ONLY = ("Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration")
#: Qwen's models with a vision encoder that SGLang was tuned for.
_QWEN3_VL = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
#: Requests that run with speculative decoding if nobody says how many (speculative_hook.py).
_SPECULATING = 48
#: The names of the connector of SGLang's own disaggregation.
_CONNECTOR = ("sglang", "SGLangConnector")
#: Slots for states a request takes, with those of prefixes (kv_cache_configurator.py, _calculate_mamba_ratio).
_STATES, _STATES_KEPT = 3, 2


def check_scheduler(settings: EngineSettings, version: EngineVersion) -> None:
    """Raise ConfigError for settings of another scheduler than that of *version*, with the name that it has for them.
    """
    given, plain = settings.sglang, EngineSettings()
    if version.scheduler != "sglang":
        if given is not None and given != SglangSettings():
            key = next(key for key in fields_dict(SglangSettings) if getattr(given, key) != getattr(
                SglangSettings(), key))
            raise ConfigError(f"serve.sglang.{key}", _not_of(version, key))
        return
    if is_complete(given):
        return  # as of a run: see `check_followed`
    refused = [key for key in VLLM_KEYS if getattr(settings, key) != getattr(plain, key)
               and not (key == "scheduling_policy" and _own_order(settings))]
    if refused:
        key, *more = refused
        likewise = f"; likewise {', '.join(f'{name} ({VLLM_KEYS[name]})' for name in more)}" if more else ""
        raise ConfigError(f"serve.{key}", _not_known(settings, version, key, VLLM_KEYS[key]) + likewise)


def check_followed(settings: EngineSettings, complete: EngineSettings) -> None:
    """Raise ConfigError for settings of vLLM's beside all of SGLang's that do not follow from these, as in *complete*.
    """
    plain = EngineSettings()
    for key, other in VLLM_KEYS.items() if complete.sglang and is_complete(settings.sglang) else ():
        given = getattr(settings, key)
        if given not in (getattr(plain, key), getattr(complete, key)):
            raise ConfigError(f"serve.{key}", f"is {given!r}, and {getattr(complete, key)!r} follows from"
                                              f" serve.sglang.{other}; set that, and leave this out")


def _not_of(version: EngineVersion, key: str) -> str:
    if key in _OF_VLLM and version.name.startswith("vLLM"):
        return f"is a setting of SGLang's, and the engine is {version.name}: vLLM calls it serve.{_OF_VLLM[key]}"
    return f"is a setting of SGLang's, and the engine is {version.name}; leave it out, or set engine = 'sglang-0.5.8'"


def _not_known(settings: EngineSettings, version: EngineVersion, key: str, other: str) -> str:
    if key == "scheduling_policy":
        name = settings.scheduling_policy.name
        other = "enable_priority_scheduling" if name == "priority" else other
        if name != "priority":
            return (f"{name!r} proposes batches or has a queue of its own, for which {version.name} has rules: SGLang"
                    f" has serve.sglang.{other}; or name a policy with order or victim alone")
    kept = f" = {settings.async_scheduling}".lower() if key == "async_scheduling" else ""
    verb = "has" if key in ("watermark", "admission", "scheduler_reserve_full_isl") else "calls it"
    return f"{'is' if not kept else kept[1:] + ' is'} vLLM's, and the engine is {version.name}: SGLang {verb}" \
           f" serve.sglang.{other}"


def _own_order(settings: EngineSettings) -> bool:
    """Whether the policy is one with an order, or victims, of its own, which SGLang's scheduler takes, too."""
    name = settings.scheduling_policy.name
    if name in ("fcfs", "priority"):
        return name == "fcfs"
    found = catalog.find("scheduling.policies", name)
    others = hasattr(found, "propose") or hasattr(found, "queue")
    return not others and (hasattr(found, "order") or hasattr(found, "victim"))


def is_complete(given: SglangSettings | None) -> bool:
    """Whether all is derived, as in the settings of a deployment."""
    return given is not None and None not in (given.chunked_prefill_size, given.max_running_requests, given.page_size,
                                              given.context_length, given.mem_fraction_static)


def decode_graphs(largest: int, drafts: int) -> tuple[int, ...]:
    """The numbers of sequences for which SGLang captures decode graphs, where each has *drafts* drafted tokens
    (cuda_graph_hook.py, generate_decode_cuda_graph_batch_sizes)."""
    if drafts:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, largest + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32)]
    return tuple(sorted({*(size for size in sizes if size <= largest), largest}))


def prefill_graphs(largest: int) -> tuple[int, ...]:
    """The numbers of prompt tokens for which SGLang captures graphs (generate_prefill_cuda_graph_batch_sizes)."""
    sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64),
             *range(1280, 4097, 256), *range(4608, largest + 1, 512)]
    return tuple(size for size in sizes if size <= largest)


@frozen
class SglangServer:
    """What *version* fills in for *model* on *gpu*; `settings` have their formats of weights and KV."""

    settings: EngineSettings
    version: EngineVersion
    model: Model
    gpu: Gpu

    def rows(self) -> list[Row]:
        """Every setting of SGLang's as `sglang.KEY`, and those of all engines that follow, but for CUDA graphs."""
        self._check()
        return [*self._server(), *self._pool()]

    # What the server's arguments are -----------------------------------------------------------------------------

    @cached_property
    def given(self) -> SglangSettings:
        return self.settings.sglang or SglangSettings()

    @cached_property
    def role(self) -> str:
        """What the engine does for others: prefill, decode or both."""
        return _role(self.settings)

    @property
    def ranks(self) -> int:
        """Ranks of data-parallel attention."""
        return self.settings.data_parallel_size

    @cached_property
    def memory(self) -> float:
        """The GPU's memory in MiB, as `nvidia-smi` shows it."""
        return (self.gpu.driver_memory or self.gpu.memory) / MIB

    @cached_property
    def server(self) -> SglangSettings:
        """All settings but those that follow from the KV cache."""
        return evolve(self.given, **{key.removeprefix("sglang."): value for key, value, _ in self._server()})

    def _row(self, key: str, value: Any, source: str) -> Row:
        given = getattr(self.given, key)
        return (f"sglang.{key}", value, source) if given is None else (f"sglang.{key}", given, "as set")

    def _server(self) -> Iterator[Row]:
        """The settings that do not follow from the KV cache, in the order of the class."""
        serve, given = self.settings, self.given
        by_memory = f"{self.version.name}, {self.memory / 1024:.1f} GiB of GPU memory"
        yield self._row("chunked_prefill_size", self._chunk, by_memory)
        yield self._row("context_length", self.model.max_length,
                        f"{self.model.name}: longest context of its config.json")
        page, why = self._page
        yield ("sglang.page_size", page, why)
        yield self._row("mem_fraction_static", *self._static)
        forced = {
            "disable_radix_cache": (self.role == "decode" and not given.disaggregation_decode_enable_radix_cache,
                                    f"{self.version.name}: not on decode servers"),
            "disable_overlap_schedule": (serve.pipeline_parallel_size > 1, f"{self.version.name}: pipeline stages"),
        }
        for key, (holds, source) in forced.items():
            if holds and not getattr(given, key):
                yield (f"sglang.{key}", True, source)
        if given.enable_mixed_chunk and serve.speculative_config is not None:
            yield ("sglang.enable_mixed_chunk", False, f"{self.version.name}: not with speculative decoding")
        yield self._row("prefill_decode_interval", 22 if self._is_profiled else 0,
                        f"{self.version.name}: Qwen3-VL on Hopper" if self._is_profiled else self.version.name)
        ratio = 0.1 if self.model.architecture == "DeepseekV4ForCausalLM" else 0.8
        yield self._row("swa_full_tokens_ratio", ratio, self.version.name)
        pooled = self.model.architecture in _WINDOW_POOLS
        yield self._row("disable_hybrid_swa_memory", not pooled,
                        f"{self.version.name}: {'a' if pooled else 'no'} pool for windows of {self.model.name}")
        yield self._row("disaggregation_decode_extra_slots", self._extra_slots, self.version.name)

    @cached_property
    def _chunk(self) -> int:
        """Tokens by GPU memory, of all ranks."""
        return self.version.step("openai_api_server", self.gpu.name, self.gpu.memory).tokens

    @cached_property
    def chunk(self) -> int:
        """The `chunked_prefill_size` of the server, of all ranks of data-parallel attention."""
        return self.given.chunked_prefill_size or self._chunk

    @cached_property
    def _extra_slots(self) -> int:
        most = self.given.max_running_requests
        if self.role != "decode" or most is None:
            return 0
        rank = max(1, most // self.ranks)
        return 2 * rank if rank <= 32 else 0

    @cached_property
    def largest_graph(self) -> int:
        """Most sequences of a decode for which a graph is captured; whatever `cudagraph_mode` says."""
        width, settings = 1 + self.settings.drafted, self.settings
        if settings.cudagraph_capture_sizes:
            return max(1, max(settings.cudagraph_capture_sizes) // width)
        if settings.max_cudagraph_capture_size is not None:
            return max(1, settings.max_cudagraph_capture_size // width)
        usual = self.version.budget(self.gpu.name, self.gpu.memory).graph(settings)
        most = self.given.max_running_requests
        if self._is_profiled and most is not None and most <= 512:
            return most
        return min(usual, most or usual)

    @property
    def _is_profiled(self) -> bool:
        """Whether it is Qwen3-VL on a large Hopper, which has defaults of its own (model_overrides/qwen3_vl.py)."""
        return (self.version.breakable_graphs and self.model.architecture in _QWEN3_VL
                and self.gpu.architecture == "hopper" and self.memory >= 60 * 1024)

    # Memory ------------------------------------------------------------------------------------------------------

    @cached_property
    def _static(self) -> tuple[float, str]:
        kept, images = self.reserve(), self._images()
        share = round(max(0.01, (self.memory - kept) / self.memory), 3)
        why = f"{self.version.name}: {self.memory / 1024:.1f} GiB less {kept / 1024:.1f} for a chunk and graphs"
        return share * images, why + (f", times {images:.3f} for images" if images != 1 else "")

    def reserve(self) -> float:
        """The MiB that SGLang keeps beside weights and KV (memory_hook.py, handle_gpu_memory_settings).

        1.5 for each token of a chunk, 2 for each sequence of the largest decode graph, 128 for each GPU, more for each
        rank of data-parallel attention, and at least 10 GiB on large GPUs.  Since graphs of prompts are captured, they
        are counted, and buffers of DeepEP; before, drafters were.
        """
        settings, later = self.settings, self.version.breakable_graphs
        decodes = self.role != "prefill" and not settings.enforce_eager and settings.cudagraph_mode != "NONE"
        counts = decodes or not later
        most, tokens = self.largest_graph, self._working_tokens()
        kept = 512 + 1.5 * tokens + 128.0 * settings.gpus * self.ranks + (2 * most if counts else 0)
        if self.ranks > 1 and (self.role != "prefill" or not later):
            kept += most * self.ranks * (4.5 if most > 300 else 3)
        if self._graphs_prompts:  # reserve_for_graph_mb
            kept += 1536 if later and self.model.keeps_latents else 8 * len(self.prompt_graphs)
            kept += 1024 if self._deepep else 0
        if self.memory > 60 * 1024:
            kept = max(kept, 10 * 1024)
        if later:
            return kept + (2 * 1024 if self._deepep and decodes else 0)
        drafts = settings.speculative_config
        return kept + (0 if drafts is None or drafts.method == "ngram" else
                       (6 if drafts.method == "draft_model" else 2) * 1024)

    def _working_tokens(self) -> int:
        """The tokens that activations are counted for."""
        if self.role == "decode" and self.version.breakable_graphs:
            return max((self.given.max_running_requests or self.largest_graph) * (1 + self.settings.drafted), 2048)
        return max(self.chunk if self.chunk > 0 else self.given.max_prefill_tokens, 2048)

    @cached_property
    def _deepep(self) -> bool:
        return "deepep" in self.settings.all2all_backend and self.settings.enable_expert_parallel

    @cached_property
    def _graphs_prompts(self) -> bool:
        """Whether graphs of prompts are captured (_handle_piecewise_cuda_graph, disable_breakable_cudagraph_if_...)."""
        settings, architecture, breakable = self.settings, self.model.architecture, self.version.breakable_graphs
        images = self._takes_images and not (breakable and architecture in _ENCODERS)
        if not self.version.prefill_graphs or self.role == "decode" or settings.enforce_eager or images or (
                settings.pipeline_parallel_size > 1 or settings.enable_dbo or architecture == "KimiLinearForCausalLM"):
            return False
        return breakable or (self.role == "both" and self.ranks == 1 and not self._deepep)

    @cached_property
    def prompt_graphs(self) -> tuple[int, ...]:
        """The numbers of prompt tokens for which graphs are captured."""
        if not self._graphs_prompts:
            return ()
        latent = self.version.prefill_graphs if self.model.keeps_latents else self.chunk
        largest = min(size for size in (self.chunk, latent, self.given.max_total_tokens) if size is not None)
        if self._deepep:  # which needs multiples of 8, up to 2048
            return tuple(sorted({-(-size // 8) * 8 for size in prefill_graphs(2048)}))
        return prefill_graphs(largest)

    @property
    def _takes_images(self) -> bool:
        taken = self.model.decoder.encoder is not None or self.model.architecture in _ENCODERS
        return taken and self.model.architecture not in _TEXT_ONLY and not self.settings.language_model_only

    def _images(self) -> float:
        """What a vision encoder makes of the share (adjust_mem_fraction_for_vlm): by the size of its layers, of which
        SGLang counts 24 where config.json says `depth`, as Qwen's does."""
        encoder, name = self.model.decoder.encoder, self.model.architecture
        if not self._takes_images or self.role == "decode":
            return 1.0
        layers, width = _ENCODERS[name] if encoder is None else (
            24 if name.startswith("Qwen") else len(encoder.layers), encoder.sizes["m"])
        size = layers * width**2 / (24 * 1024**2)
        return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (size - 1.0)))

    # Pages -------------------------------------------------------------------------------------------------------

    @cached_property
    def _page(self) -> tuple[int, str]:
        kernels, sizes = self._kernels
        given = self.given.page_size
        if given is not None and (not sizes or given in sizes):
            return given, "as set"
        if given is not None:
            return sizes[-1], f"{self.version.name}: {kernels} take no pages of {given} tokens"
        return (sizes[-1] if sizes else 1), f"{self.version.name}: {kernels}"

    @cached_property
    def _kernels(self) -> tuple[str, tuple[int, ...]]:
        """The attention kernels, and the pages that they take, the usual last; any where there are none
        (overrides.py: _mla_backend_page_constraints; model_override_base.py: get_default_attn_backend)."""
        name, latent = self.model.architecture, self.model.attends_latently
        if name in _SPARSE or name == "DeepseekV4ForCausalLM":
            return "sparse attention", (64 if name in _SPARSE else 256,)
        if self.gpu.architecture != "blackwell":
            return "FlashAttention 3" if self.gpu.architecture == "hopper" else "FlashInfer or Triton", ()
        if latent or name in _TRTLLM_MLA:
            return ("TRT-LLM MLA", (32, 64)) if name in _TRTLLM_MLA else ("FlashInfer", ())
        if name in _PAGES_OF_ONE:
            return "Triton or FlashInfer beside states", (1,) if name.startswith("Qwen") else ()
        drafts = self.settings.speculative_config
        beside_states = ("Granite" in name and self.model.keeps_states) or name == "KimiLinearForCausalLM"
        if beside_states or not self.version.trtllm_mha or (drafts is not None and drafts.method == "ngram"):
            return "FlashInfer", ()
        return "TRT-LLM MHA", (16, 32, 128, 64)

    def _check(self) -> None:
        """Refuse what SGLang refuses of the model, the GPU and parallelism (validation_hook.py)."""
        serve, given, where = self.settings, self.given, "serve.sglang"
        if given.context_length is not None and given.context_length > self.model.max_length:
            raise ConfigError(f"{where}.context_length",
                              f"{given.context_length} is greater than the derived context length, the"
                              f" {self.model.max_length} tokens of {self.model.name}; set at most these")
        if given.min_free_slots_delay is not None and serve.pipeline_parallel_size > 1:
            raise ConfigError(f"{where}.min_free_slots_delay", "is not supported with pipeline parallelism; leave it"
                                                               " out, or set pipeline_parallel_size = 1")
        chunk, page = self.chunk // self.ranks if self.chunk > 0 else -1, self._page[0]
        if chunk > 0 and chunk % page and self.role != "decode":
            divided = f" ({self.chunk} over {self.ranks} ranks)" if self.ranks > 1 else ""
            raise ConfigError(f"{where}.chunked_prefill_size", f"{chunk}{divided} must be divisible by page_size, which"
                                                               f" is {page}")
        config = serve.kv_transfer_config
        if given.disable_radix_cache and config is not None and config.kv_connector == "HiCache":
            raise ConfigError(f"{where}.disable_radix_cache", "and a hierarchical cache are mutually exclusive; leave"
                                                              " one of them out")

    # What follows ------------------------------------------------------------------------------------------------

    def _pool(self) -> Iterator[Row]:
        """How many requests run, by the tokens of the KV cache, and the settings of all engines."""
        server, name = self.server, self.version.name
        caching = not server.disable_radix_cache
        blocks = self.settings.speculative_config is not None and bool(lacking(self.model, self.settings))
        shared: dict[str, tuple[Any, str]] = {
            "enable_chunked_prefill": (server.chunked_prefill_size != -1, "sglang.chunked_prefill_size"),
            "block_size": (server.page_size, "sglang.page_size"),
            "enable_prefix_caching": (caching, "sglang.disable_radix_cache"),
            # Drafts change the keys of the radix tree, which vLLM's scheduler does not know.
            "prefix_cache": ("vllm" if blocks else "sglang", name),
            "eviction": (None if blocks else Choice(server.radix_eviction_policy), "sglang.radix_eviction_policy"),
            "async_scheduling": (not server.disable_overlap_schedule, "sglang.disable_overlap_schedule"),
        }
        partly = evolve(self.settings, sglang=server, max_num_seqs=2048, max_model_len=server.context_length,
                        max_num_batched_tokens=2048, **{key: value for key, (value, _) in shared.items()})
        tokens, states = sglang_pool(self.model, shards_of(self.model, partly), self.gpu, partly)
        running, why = self._running(tokens, states)
        yield ("sglang.max_running_requests", running, why)
        seqs = max(1, min(running // self.ranks, tokens // 2))
        yield ("max_num_seqs", seqs, "sglang.max_running_requests" if seqs == running // self.ranks else
               f"{name}: half of the tokens of the KV cache")
        longest, page = server.context_length or self.model.max_length, server.page_size or 1
        fits = tokens - page
        yield ("max_model_len", min(longest, max(fits, 2)), "sglang.context_length" if longest <= fits else
               f"{name}: what the KV cache holds")
        step, why = self._step(seqs)
        yield ("max_num_batched_tokens", step, why)
        yield from ((key, value, source) for key, (value, source) in shared.items())
        whole = evolve(partly, max_num_seqs=seqs, max_num_batched_tokens=step)
        yield ("gpu_memory_utilization", of_static(server.mem_fraction_static or 0.0, self.model, self.gpu, whole),
               "sglang.mem_fraction_static, of weights and KV; and the activations")

    def _step(self, sequences: int) -> tuple[int, str]:
        """Most tokens of a step of one rank, where so many *sequences* may run."""
        rank = self.server.on_rank(self.ranks)
        if self.role == "decode":
            return max(sequences * (1 + self.settings.drafted), 2048), "sglang.max_running_requests: all decode"
        if rank.chunked_prefill_size in (None, -1):
            return rank.max_prefill_tokens, "sglang.max_prefill_tokens"
        return rank.chunked_prefill_size or 1, "sglang.chunked_prefill_size"

    def _running(self, tokens: int, states: int | None) -> tuple[int, str]:
        """Most requests of all ranks, for a KV cache of so many *tokens* and *states* on each
        (kv_cache_configurator.py, resolve_max_num_reqs)."""
        given, name = self.given.max_running_requests, self.version.name
        if given is not None:
            return given, "as set"
        if self.settings.speculative_config is not None:
            return _SPECULATING, f"{name}: with speculative decoding"
        context = self.server.context_length or self.model.max_length
        most = min(max(min(512 * tokens // context, 4096), 2048), tokens // 2)
        why = f"{name}: 512 x {tokens} tokens of KV cache / {context}, 2048 to 4096, at most half the tokens"
        if states is not None:
            slots = 1 if self.server.disable_radix_cache else _STATES + _STATES_KEPT
            if states // slots < most:
                most, why = states // slots, f"{name}: {states} states, {slots} a request"
        return max(1, most) * self.ranks, why


#: For what ksim lacks SGLang's rules, and whether an engine has it: vLLM's scheduler makes its schedules.
LACKS: Mapping[str, Callable[[Model, EngineSettings], bool]] = {
    "pipeline stages": lambda _, serve: serve.pipeline_parallel_size > 1,
    "a KV connector": lambda _, serve: (serve.kv_offloading_size is not None or (
        serve.kv_transfer_config is not None and not _is_side(serve))),
    "LoRA": lambda _, serve: serve.enable_lora,
    "n-grams": lambda _, serve: serve.speculative_config is not None and serve.speculative_config.method == "ngram",
    "images": lambda model, serve: _sees(model) and not serve.language_model_only,
}


def _is_side(serve: EngineSettings) -> bool:
    """Whether it is one side of SGLang's own disaggregation, with neither drafts nor a pool for windows."""
    config, own = serve.kv_transfer_config, serve.sglang
    return (config is not None and config.kv_connector in _CONNECTOR and _role(serve) != "both"
            and serve.speculative_config is None and own is not None and bool(own.disable_hybrid_swa_memory))


def _role(serve: EngineSettings) -> str:
    """What an engine does for others: prefill, decode or both."""
    config = serve.kv_transfer_config
    return {"kv_producer": "prefill", "kv_consumer": "decode"}.get((config and config.kv_role) or "", "both")


def _sees(model: Model) -> bool:
    encoder = model.decoder.encoder
    return encoder is not None and encoder.images is not None


def lacking(model: Model, serve: EngineSettings) -> tuple[str, ...]:
    """What an engine of SGLang's with these settings has for which ksim lacks SGLang's rules."""
    return tuple(name for name, has in LACKS.items() if has(model, serve))

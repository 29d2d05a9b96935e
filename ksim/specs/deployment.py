"""Deployment: how a model is cut over GPUs, and the settings of a serving engine."""

from attrs import field, frozen
from attrs.validators import ge, gt, in_, le, optional

from ksim.foundation.config import Choice
from ksim.foundation.units import DType, optional_quantity


@frozen
class Precision:
    """Number formats of weights, of the activations that meet them in a GEMM, and of the KV cache.

    Everything else, attention included, computes in BF16.
    """

    weights: DType = DType.BF16
    activations: DType = DType.BF16
    cache: DType = DType.BF16


@frozen
class Shard:
    """One rank's share of a model: 1/`tensor` of every layer of pipeline stage `stage` of `stages`."""

    tensor: int = 1
    stage: int = 0
    stages: int = 1
    precision: Precision = Precision()

    def share(self, layers: int) -> range:
        """Which of *layers* layers this stage holds.

        As in vLLM, layers left over go one each to the stages before the last, which has the head.
        """
        each, over = divmod(layers, self.stages)
        sizes = [each + (0 < self.stages - 1 - i <= over) for i in range(self.stages)]
        first = sum(sizes[: self.stage])
        return range(first, first + sizes[self.stage])

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.stages - 1


#: vLLM's `--quantization` to the formats of weights and activations.  "fp8_w8a16" is what vLLM's Marlin kernels do.
QUANTIZATIONS = {
    "none": (DType.BF16, DType.BF16),
    "fp8": (DType.FP8, DType.FP8),
    "fp8_w8a16": (DType.FP8, DType.BF16),
}
CACHE_DTYPES = {"auto": DType.BF16, "bfloat16": DType.BF16, "fp8": DType.FP8}


#: vLLM's `compilation_config.cudagraph_mode`.
CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@frozen
class EngineSettings:
    """The settings of one engine, by the names and with the defaults of ``vllm serve`` (0.33).

    Each of `data_parallel_size` replicas is an engine of its own.  What is None
    is derived as the engine's version derives it (studies/defaults.py), among
    other things from how it is used: `usage_context` is its API server or its
    offline class.  `num_gpu_blocks_override` replaces the KV cache's size that
    follows from memory and weights.  `prefix_cache` says by whose rules prompts are shared,
    and `eviction` what is lost first; by default that of the same program:
    "vllm" or "lru".  `enforce_eager` does without CUDA graphs and torch.compile.
    """

    tensor_parallel_size: int = field(default=1, validator=gt(0))
    pipeline_parallel_size: int = field(default=1, validator=gt(0))
    data_parallel_size: int = field(default=1, validator=gt(0))
    scheduling_policy: Choice = field(factory=lambda: Choice("fcfs"))
    admission: Choice = field(factory=lambda: Choice("always"))
    max_num_batched_tokens: int | None = field(default=None, validator=optional(gt(0)))
    max_num_seqs: int | None = field(default=None, validator=optional(gt(0)))
    max_model_len: int | None = field(default=None, validator=optional(gt(1)))
    gpu_memory_utilization: float = field(default=0.9, validator=(gt(0), le(1)))
    num_gpu_blocks_override: int | None = field(default=None, validator=optional(gt(1)))
    block_size: int | None = field(default=None, validator=optional(gt(0)))
    enable_prefix_caching: bool = True
    prefix_cache: str = field(default="vllm", validator=in_(("vllm", "sglang")))
    eviction: Choice | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = field(default=0, validator=ge(0))
    long_prefill_token_threshold_adaptive: bool = False
    max_num_active_seqs: int | None = field(default=None, validator=optional(gt(0)))
    prefill_schedule_interval: int = field(default=1, validator=gt(0))
    scheduler_reserve_full_isl: bool | None = None
    watermark: float = field(default=0.0, validator=(ge(0), le(1)))
    async_scheduling: bool = True
    quantization: str = field(default="none", validator=in_(tuple(QUANTIZATIONS)))
    kv_cache_dtype: str = field(default="auto", validator=in_(tuple(CACHE_DTYPES)))
    usage_context: str = field(default="openai_api_server", validator=in_(("openai_api_server", "llm_class")))
    enforce_eager: bool = False
    cudagraph_mode: str | None = field(default=None, validator=optional(in_(CUDAGRAPH_MODES)))
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = field(default=None, validator=optional(gt(0)))

    @property
    def precision(self) -> Precision:
        weights, activations = QUANTIZATIONS[self.quantization]
        return Precision(weights, activations, CACHE_DTYPES[self.kv_cache_dtype])

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@frozen
class Slo:
    """Latency targets in seconds: to the first token, per token after it, and to the last; None asks nothing."""

    ttft: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    tpot: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))
    e2el: float | None = field(default=None, converter=optional_quantity, validator=optional(gt(0)))

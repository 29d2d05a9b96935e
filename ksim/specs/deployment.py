"""Deployment: how a model is cut over GPUs, and the settings of a serving engine."""

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_, le, optional

from ksim.foundation.config import Choice
from ksim.foundation.units import DType, optional_quantity
from ksim.specs.experts import Placement, Routing


@frozen
class Precision:
    """Number formats of weights, of the activations that meet them in a GEMM, and of the KV cache.

    Everything else, attention included, computes in BF16, and so do the `kept` ones of `PARTS`.
    """

    weights: DType = DType.BF16
    activations: DType = DType.BF16
    cache: DType = DType.BF16
    kept: tuple[str, ...] = ()

    def of(self, part: str) -> tuple[DType, DType]:
        """The formats of a part's weights and activations; "" is no part, and never kept."""
        return (DType.BF16, DType.BF16) if part in self.kept else (self.weights, self.activations)


@frozen
class Shard:
    """One rank's share of a model: 1/`tensor` of every layer of pipeline stage `stage` of `stages`.

    `data` ranks, each `tensor` GPUs with batches and a KV cache of their own, share a mixture's experts among all their
    GPUs: whole experts if `expert_parallel`, else a slice of each; or both, where `slices` GPUs each have a slice of
    the same experts.  `exchange` is how they swap tokens for that, by vLLM's names of its `all2all_backend`;
    `routing` is how popular the experts are, and `placement` who holds them.
    """

    tensor: int = 1
    stage: int = 0
    stages: int = 1
    precision: Precision = Precision()
    data: int = 1
    expert_parallel: bool = False
    exchange: str = "allgather_reducescatter"
    routing: Routing = Routing()
    slices: int = 1
    placement: Placement = Placement()

    @property
    def expert_groups(self) -> int:
        """Among how many groups of GPUs whole experts are dealt out."""
        return self.expert_ranks // self.slices if self.expert_parallel else 1

    @property
    def expert_ranks(self) -> int:
        """How many GPUs share a layer's experts."""
        return self.tensor * self.data

    @property
    def scattered(self) -> bool:
        """Whether the ranks of a tensor-parallel group divide its tokens before the experts, as in vLLM."""
        return self.expert_parallel and self.data > 1 and self.tensor > 1

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


#: What a checkpoint may leave in BF16 when it is quantized; embedding, head, router and norms always are.
PARTS = ("attention", "mlp", "shared_experts", "experts")
#: vLLM's `--quantization` to the formats of weights and activations, and the parts kept in BF16.  "auto" is what the
#: model's config says.  "fp8_w8a16", "mxfp4" and "int4_w4a16" are what vLLM's Marlin and Triton kernels do;
#: "mxfp4_mxfp8" is "mxfp4" with VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1, on Blackwell.
QUANTIZATIONS = {
    "auto": (DType.BF16, DType.BF16, ()),
    "none": (DType.BF16, DType.BF16, ()),
    "fp8": (DType.FP8, DType.FP8, ()),
    "fp8_w8a16": (DType.FP8, DType.BF16, ()),
    "fp8_block": (DType.FP8_BLOCK, DType.FP8, ()),
    "nvfp4": (DType.NVFP4, DType.NVFP4, ()),
    "modelopt_fp4": (DType.NVFP4, DType.NVFP4, ()),
    "mxfp4": (DType.MXFP4, DType.BF16, ("attention", "mlp", "shared_experts")),
    "mxfp4_mxfp8": (DType.MXFP4, DType.FP8, ("attention", "mlp", "shared_experts")),
    "int4_w4a16": (DType.INT4_BLOCK, DType.BF16, ()),
}


def _of_parts(_: object, attribute: "Attribute[tuple[str, ...] | None]", value: tuple[str, ...] | None) -> None:
    if strangers := [part for part in value or () if part not in PARTS]:
        raise ValueError(f"{attribute.name!r} must be some of {', '.join(PARTS)}, not {strangers[0]!r}")


#: vLLM's backends for the tokens that data-parallel ranks swap before and after experts.
EXCHANGES = ("allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput")
CACHE_DTYPES = {"auto": DType.BF16, "bfloat16": DType.BF16, "fp8": DType.FP8}


#: vLLM's `compilation_config.cudagraph_mode`.
CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

#: No step has more tokens, so no CUDA graph can be of use that is larger.
LARGEST_GRAPH = 2**20


def _graph_sizes(_: object, attribute: "Attribute[tuple[int, ...] | None]", value: tuple[int, ...] | None) -> None:
    for size in value or ():
        if not 0 < size <= LARGEST_GRAPH:
            raise ValueError(f"{attribute.name!r} must be sizes of 1 to {LARGEST_GRAPH} tokens, not {size}")


@frozen
class EngineSettings:
    """The settings of one engine, by the names and with the defaults of ``vllm serve`` (0.33).

    Each of `data_parallel_size` replicas is an engine of its own; those of a
    mixture share its experts.  `unquantized` are the `PARTS` kept in BF16.
    What is None
    is derived as the engine's version derives it (studies/defaults.py), among
    other things from how it is used: `usage_context` is its API server or its
    offline class.  `num_gpu_blocks_override` replaces the KV cache's size that
    follows from memory and weights.  `prefix_cache` says by whose rules prompts are shared,
    and `eviction` what is lost first; by default that of the same program:
    "vllm" or "lru".  `expert_parallel_size`, which vLLM lacks and TensorRT-LLM and SGLang have, is into how many groups
    GPUs are divided that each hold whole experts, and slice these among them; by default all GPUs.
    With `enable_eplb`, experts lie where their loads are even, `num_redundant_experts` of them (a key of vLLM's
    `eplb_config`) in copies; else as `expert_placement_strategy` says.
    With `fuse_allreduce_rms`, all-reduces of up to
    `fi_allreduce_fusion_max_size_mb` MiB are FlashInfer's.  `enforce_eager` does without CUDA graphs and torch.compile.
    `overlap_stages`, which vLLM lacks and Megatron-LM has, is into how many pieces a product is cut whose result is
    all-reduced: each of them on `overlap_sms` SMs, while the others compute the next.
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
    quantization: str = field(default="auto", validator=in_(tuple(QUANTIZATIONS)))
    unquantized: tuple[str, ...] | None = field(default=None, validator=_of_parts)
    kv_cache_dtype: str = field(default="auto", validator=in_(tuple(CACHE_DTYPES)))
    usage_context: str = field(default="openai_api_server", validator=in_(("openai_api_server", "llm_class")))
    enforce_eager: bool = False
    cudagraph_mode: str | None = field(default=None, validator=optional(in_(CUDAGRAPH_MODES)))
    cudagraph_capture_sizes: tuple[int, ...] | None = field(default=None, validator=_graph_sizes)
    max_cudagraph_capture_size: int | None = field(default=None, validator=optional((gt(0), le(LARGEST_GRAPH))))
    enable_expert_parallel: bool = False
    expert_parallel_size: int | None = field(default=None, validator=optional(gt(0)))
    expert_placement_strategy: str = field(default="linear", validator=in_(("linear", "round_robin")))
    enable_eplb: bool = False
    num_redundant_experts: int = field(default=0, validator=ge(0))
    all2all_backend: str = field(default="allgather_reducescatter", validator=in_(EXCHANGES))
    fuse_allreduce_rms: bool = False
    fi_allreduce_fusion_max_size_mb: float | None = field(default=None, validator=optional(gt(0)))
    overlap_stages: int = field(default=1, validator=gt(0))
    overlap_sms: int = field(default=0, validator=ge(0))

    def __attrs_post_init__(self) -> None:
        ranks, groups = self.tensor_parallel_size * self.data_parallel_size, self.expert_parallel_size
        if groups and (ranks % groups or not self.enable_expert_parallel):
            raise ValueError(f"expert_parallel_size = {groups} must divide the {ranks} GPUs that share the experts, and"
                             f" needs enable_expert_parallel")
        if "deepep" in self.all2all_backend and self.data_parallel_size > 1 and not self.enable_expert_parallel:
            raise ValueError(f"all2all_backend = {self.all2all_backend!r} sends tokens to whole experts; set"
                             f" enable_expert_parallel, or leave it at 'allgather_reducescatter'")
        self._check_placement(groups or ranks)
        self._check_overlap()

    def _check_overlap(self) -> None:
        if (self.overlap_stages > 1) != (self.overlap_sms > 0):
            raise ValueError(f"overlap_stages = {self.overlap_stages} and overlap_sms = {self.overlap_sms}: set 2 or"
                             f" more stages and 1 SM or more, or neither")
        if self.overlap_stages > 1 and self.tensor_parallel_size == 1:
            raise ValueError(f"overlap_stages = {self.overlap_stages} needs a tensor_parallel_size of 2 or more; one"
                             f" GPU has nothing to all-reduce")

    def _check_placement(self, groups: int) -> None:
        if self.num_redundant_experts and not self.enable_eplb:
            raise ValueError(f"num_redundant_experts = {self.num_redundant_experts} are copies that EPLB makes; set"
                             f" enable_eplb, or leave them out")
        if self.enable_eplb and self.expert_placement_strategy != "linear":
            raise ValueError("enable_eplb decides which rank holds which expert; leave out expert_placement_strategy")
        if self.placement != Placement() and not self.enable_expert_parallel:
            asked = "enable_eplb" if self.enable_eplb else "expert_placement_strategy"
            raise ValueError(f"{asked} places whole experts; set enable_expert_parallel, or leave it out")
        if self.enable_eplb and groups == 1:
            raise ValueError("enable_eplb evens out ranks, and one holds all experts; leave it out, or set"
                             " data_parallel_size or tensor_parallel_size")

    @property
    def precision(self) -> Precision:
        weights, activations, usual = QUANTIZATIONS[self.quantization]
        kept = usual if self.unquantized is None else tuple(self.unquantized)
        return Precision(weights, activations, CACHE_DTYPES[self.kv_cache_dtype], kept)

    @property
    def placement(self) -> Placement:
        return Placement("balanced" if self.enable_eplb else self.expert_placement_strategy, self.num_redundant_experts)

    @property
    def slices(self) -> int:
        """How many GPUs share each expert of those that are dealt out whole."""
        ranks = self.tensor_parallel_size * self.data_parallel_size
        return ranks // (self.expert_parallel_size or ranks)

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

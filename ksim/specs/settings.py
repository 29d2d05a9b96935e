"""The settings of a serving engine, as `vllm serve` names them, and those of a fleet around it.

`EngineVersion` has the defaults of a release, and the decisions in which releases differ.  `Slo` has a fleet's latency
targets, and `SignalSettings` what its routers are told of engines: how often, how late, and how much of it is lost.
"""

from collections.abc import Mapping
from typing import Any

from attrs import Attribute, field, frozen, validators
from attrs.validators import ge, gt, in_, le, lt, optional

from ksim.foundation.config import Choice
from ksim.foundation.units import Seconds, optional_quantity, quantity
from ksim.specs.configs import (
    ENCODER_MODES,
    LORA_DTYPES,
    OFFLOADING_BACKENDS,
    KvTransferConfig,
    LimitMmPerPrompt,
    LoraModule,
    MmProcessorKwargs,
    SpeculativeConfig,
    check_lora,
    ranked,
)
from ksim.specs.sglang import SglangSettings
from ksim.specs.shard import CACHE_DTYPES, PARTS, QUANTIZATIONS, STATE_DTYPES, KnownQuantization, Placement, Precision

#: No step has more tokens, so a larger CUDA graph is of no use.
LARGEST_GRAPH = 2**20
#: More GPUs than any cluster has.
_MOST_GPUS = 10**6
#: vLLM's backends for exchanging tokens between data-parallel ranks before and after experts.
EXCHANGES = ("allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput")
#: vLLM's `compilation_config.cudagraph_mode`.
CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def _of_parts(_: object, attribute: "Attribute[tuple[str, ...] | None]", value: tuple[str, ...] | None) -> None:
    if strangers := [part for part in value or () if part not in PARTS]:
        raise ValueError(f"{attribute.name!r} must be some of {', '.join(PARTS)}, not {strangers[0]!r}")


def _graph_sizes(_: object, attribute: "Attribute[tuple[int, ...] | None]", value: tuple[int, ...] | None) -> None:
    for size in value or ():
        if not 0 < size <= LARGEST_GRAPH:
            raise ValueError(f"{attribute.name!r} must be sizes of 1 to {LARGEST_GRAPH} tokens, not {size}")


@frozen
class EngineSettings:
    """The settings of one engine, with the names and defaults of ``vllm serve`` (0.33).

    A setting that is None gets the default of the simulated release (scenario/defaults.py).
    """

    tensor_parallel_size: int = field(default=1, validator=(gt(0), le(_MOST_GPUS)))
    """GPUs that share every layer. Unit: GPUs. Source: vLLM."""
    pipeline_parallel_size: int = field(default=1, validator=(gt(0), le(_MOST_GPUS)))
    """Pipeline stages that divide the layers. Unit: stages. Source: vLLM."""
    data_parallel_size: int = field(default=1, validator=(gt(0), le(_MOST_GPUS)))
    """Replicas, each with an engine of its own; in a mixture of experts they share the experts. Unit: replicas. Source:
    vLLM."""
    scheduling_policy: Choice = field(factory=lambda: Choice("fcfs"))
    """Order of waiting requests, choice of a batch, and who is preempted. Names: scheduling.policies. Source: vLLM
    (fcfs and priority)."""
    admission: Choice = field(factory=lambda: Choice("always"))
    """Which waiting requests may start. Names: scheduling.admissions. Source: ksim."""
    max_num_batched_tokens: int | None = field(default=None, validator=optional(gt(0)))
    """Most tokens computed in a step. Unit: tokens. Default: set by release, `usage_context` and GPU memory;
    `max_model_len` without chunked prefill. Source: vLLM."""
    max_num_seqs: int | None = field(default=None, validator=optional(gt(0)))
    """Most sequences in a step. Unit: sequences. Default: by release, `usage_context` and GPU memory. Source: vLLM."""
    max_model_len: int | None = field(default=None, validator=optional(gt(1)))
    """Most tokens of a request, prompt and output together. Unit: tokens. Default: the context length in config.json.
    Source: vLLM."""
    hf_overrides: Mapping[str, Any] = field(factory=dict)
    """Overrides of config.json. Default: none. Source: vLLM. Example: {max_position_embeddings = 65536}."""
    gpu_memory_utilization: float | None = field(default=None, validator=optional((gt(0), le(1))))
    """Share of GPU memory for weights, activations and KV cache. Unit: share. Default: set by release. Source: vLLM.
    Example: 0.9."""
    num_gpu_blocks_override: int | None = field(default=None, validator=optional(gt(1)))
    """KV cache blocks, whatever the memory. Unit: blocks. Default: what fits beside weights and activations. Source:
    vLLM. Example: 20000."""
    block_size: int | None = field(default=None, validator=optional(gt(0)))
    """Tokens in a block of the KV cache. Unit: tokens. Default: set by release. Source: vLLM."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """Keep all tokens for layers with a window or chunked attention, too. Default: true where attention is chunked.
    Source: vLLM. Example: true."""
    enable_prefix_caching: bool | None = None
    """Share KV blocks among prompts that begin alike. Default: true, but for models with Mamba or linear attention
    before vLLM 0.33. Source: vLLM. Example: false."""
    prefix_cache: str = field(default="vllm", validator=in_(("vllm", "sglang")))
    """Prefix cache to simulate: block hashes as in vLLM, or a radix tree as in SGLang. Source: ksim."""
    eviction: Choice | None = None
    """Which unused cache entries are evicted first. Default: that of `prefix_cache`: vllm or lru.
    Names: kv.cache.evictions. Source: ksim. Example: "lfu"."""
    max_logprobs: int = field(default=20, validator=ge(-1))
    """Most log-probabilities at a place that a request, or a beam search, may ask for; -1 sets no limit. Unit: tokens.
    Source: vLLM."""
    enable_chunked_prefill: bool = True
    """Split prompts to fill the token budget of a step. Source: vLLM."""
    long_prefill_token_threshold: int = field(default=0, validator=ge(0))
    """Most prompt tokens of a request in a step; 0 sets no limit. Unit: tokens. Source: vLLM."""
    long_prefill_token_threshold_adaptive: bool = False
    """Raise that threshold to a fair share of the token budget if the share is larger. Source: vLLM."""
    max_num_active_seqs: int | None = field(default=None, validator=optional(gt(0)))
    """Most requests running at once. Unit: sequences. Default: `max_num_seqs`. Source: vLLM. Example: 64."""
    prefill_schedule_interval: int = field(default=1, validator=gt(0))
    """Admit prefill only every Nth step while other requests decode. Unit: steps. Source: vLLM."""
    scheduler_reserve_full_isl: bool | None = None
    """Admit a request only if its whole prompt fits into the KV cache. Default: set by release. Source: vLLM."""
    watermark: float = field(default=0.0, validator=(ge(0), lt(1)))
    """Share of KV blocks to keep free when a request is admitted. Unit: share. Source: vLLM."""
    async_scheduling: bool = True
    """Schedule a step while the one before it runs. Source: vLLM."""
    quantization: str = field(default="auto", validator=KnownQuantization())
    """Format of weights and activations; "auto" takes that of config.json, "none" is BF16. Integers whose groups are
    others than those of awq and gptq are called as in int4_w4a16_g64_zp, int8_w8a16_channel or
    int4_w4a16_g128_zp_act_order. Source: vLLM."""
    unquantized: tuple[str, ...] | None = field(default=None, validator=_of_parts)
    """Parts of the model that stay in BF16, some of attention, attention_inputs (all of it but the output projection),
    mlp, shared_experts, experts. Default: as config.json says, else usual for the format. Source: ksim. Example:
    ["attention"]."""
    kv_cache_dtype: str = field(default="auto", validator=in_(tuple(CACHE_DTYPES)))
    """Format of the KV cache; "auto" takes that of config.json, else BF16. Source: vLLM."""
    mamba_cache_dtype: str = field(default="auto", validator=in_(tuple(STATE_DTYPES)))
    """Format of what Mamba and linear attention keep of a sequence: the last tokens of convolutions, and the other
    states unless these have a format of their own; "auto" is BF16. Source: vLLM."""
    mamba_ssm_cache_dtype: str = field(default="auto", validator=in_(tuple(STATE_DTYPES)))
    """Format of states but for those of convolutions; "auto" takes that of config.json, else that of
    `mamba_cache_dtype`. Source: vLLM."""
    usage_context: str = field(default="openai_api_server", validator=in_(("openai_api_server", "llm_class")))
    """How the engine is used, which decides some defaults. Source: vLLM `UsageContext`."""
    enforce_eager: bool = False
    """Run without CUDA graphs and torch.compile. Source: vLLM."""
    cudagraph_mode: str | None = field(default=None, validator=optional(in_(CUDAGRAPH_MODES)))
    """Which steps run as CUDA graphs. Default: FULL_AND_PIECEWISE; NONE with `enforce_eager`. Source: vLLM
    `compilation_config`."""
    cudagraph_capture_sizes: tuple[int, ...] | None = field(default=None, validator=_graph_sizes)
    """Batch sizes to capture CUDA graphs for. Unit: tokens. Default: 1, 2, 4, then every 8 up to 256 and every 16 up to
    the largest. Source: vLLM `compilation_config`. Example: [1, 2, 4, 8, 16]."""
    max_cudagraph_capture_size: int | None = field(default=None, validator=optional((gt(0), le(LARGEST_GRAPH))))
    """Largest batch to capture a CUDA graph for. Unit: tokens. Default: twice `max_num_seqs`, at most what the release
    sets for the GPU. Source: vLLM `compilation_config`. Example: 256."""
    enable_expert_parallel: bool = False
    """Give each GPU whole experts instead of a slice of each. Source: vLLM."""
    expert_parallel_size: int | None = field(default=None, validator=optional(gt(0)))
    """Groups of GPUs that hold whole experts and slice them inside the group. Unit: groups. Default: one GPU a group.
    Source: TensorRT-LLM and SGLang. Example: 4."""
    expert_placement_strategy: str = field(default="linear", validator=in_(("linear", "round_robin")))
    """Which GPU holds which expert, without EPLB. Source: vLLM."""
    enable_eplb: bool = False
    """Place experts so that their loads are even. Source: vLLM."""
    num_redundant_experts: int = field(default=0, validator=(ge(0), le(1024)))
    """Extra copies of experts that EPLB places. Unit: experts. Source: vLLM `eplb_config`."""
    eplb_window_size: int = field(default=1000, validator=(gt(0), le(10**6)))
    """Last steps by whose loads EPLB places experts, where each step's are drawn. Unit: steps. Source: vLLM
    `eplb_config`."""
    eplb_step_interval: int = field(default=3000, validator=(gt(0), le(10**9)))
    """Steps from one rearrangement of experts to the next, where experts are drawn; the first comes after a quarter.
    Unit: steps. Source: vLLM `eplb_config`."""
    all2all_backend: str = field(default="allgather_reducescatter", validator=in_(EXCHANGES))
    """How data-parallel ranks exchange tokens before and after experts. Source: vLLM."""
    enable_dbo: bool = False
    """Cut steps into two micro-batches: one computes while the other exchanges tokens with experts. Source: vLLM."""
    dbo_decode_token_threshold: int = field(default=32, validator=ge(0))
    """Fewest tokens of a rank for `enable_dbo` to cut a step in which all sequences decode. Unit: tokens. Source: vLLM.
    """
    dbo_prefill_token_threshold: int = field(default=512, validator=ge(0))
    """Fewest tokens of a rank for `enable_dbo` to cut any other step. Unit: tokens. Source: vLLM."""
    dbo_comm_sms: int = field(default=20, validator=ge(0))
    """SMs that `enable_dbo` leaves to deepep_high_throughput, which the other kernels lack. Unit: SMs. Source: vLLM's
    environment variable VLLM_DBO_COMM_SMS."""
    moe_nvfp4_dispatch: bool = False
    """Send tokens to NVFP4 experts in NVFP4, not in BF16, with DeepEP. Source: SGLang `SGLANG_MOE_NVFP4_DISPATCH` and
    vLLM `VLLM_DEEPEPLL_NVFP4_DISPATCH`."""
    enable_single_batch_overlap: bool = False
    """Send experts' results back while others and shared experts are computed, with DeepEP's low-latency kernels.
    Source: SGLang."""
    enable_lora: bool = False
    """Serve LoRA adapters beside the base model. Source: vLLM."""
    lora_modules: tuple[LoraModule, ...] = ()
    """Adapters that requests may ask for, in the order in which they are loaded at the start. Source: vLLM. Example:
    [{name = "sql", rank = 16}, {name = "adapter", rank = 8, count = 64}]."""
    max_loras: int = field(default=1, validator=gt(0))
    """Most adapters in a batch, and slots for them on each GPU. Unit: adapters. Source: vLLM."""
    max_lora_rank: int = field(default=16, validator=ranked)
    """Largest rank of an adapter, to which all are padded on the GPU. Unit: none. Source: vLLM."""
    max_cpu_loras: int | None = field(default=None, validator=optional(gt(0)))
    """Most adapters in host memory. Unit: adapters. Default: `max_loras`. Source: vLLM. Example: 64."""
    fully_sharded_loras: bool = False
    """Divide both matrices of each adapter among the GPUs of `tensor_parallel_size`, not only one. Source: vLLM."""
    lora_dtype: str = field(default="auto", validator=in_(LORA_DTYPES))
    """Format of adapters; "auto" takes that of the model. Source: vLLM."""
    lora_target_modules: tuple[str, ...] | None = None
    """Modules that adapters may adapt; others have no slots on the GPU. Default: all that have weights. Source: vLLM.
    Example: ["qkv_proj", "o_proj"]."""
    fuse_allreduce_rms: bool = False
    """Fuse small all-reduces with the norm that follows, by FlashInfer's kernels. Source: vLLM `pass_config`."""
    fi_allreduce_fusion_max_size_mb: float | None = field(default=None, validator=optional((gt(0.0), le(1e6))))
    """Largest all-reduce to fuse. Unit: MiB. Default: set by GPU architecture and `tensor_parallel_size`. Source: vLLM
    `pass_config`. Example: 2.0."""
    overlap_stages: int = field(default=1, validator=gt(0))
    """Pieces to cut a product into, each all-reduced while the next is computed. Unit: pieces. Source: Megatron-LM."""
    overlap_sms: int = field(default=0, validator=ge(0))
    """SMs that carry out those all-reduces; the others compute. Unit: SMs. Source: Megatron-LM."""
    kv_transfer_config: KvTransferConfig | None = None
    """How prefill and decode engines send each other KV, and where engines offload it. Default: NixlConnector where
    pools have these roles. Source: vLLM. Example: {kv_connector = "NixlConnector"}."""
    cpu_offload_gb: float = field(default=0.0, validator=(ge(0), le(2**20)))
    """Weights of each GPU that stay in host memory, from which each step reads them over PCIe. Unit: GiB. Source: vLLM.
    """
    kv_offloading_size: float | None = field(default=None, validator=optional((gt(0), le(2**20))))
    """Host memory for KV that leaves the GPUs of one engine, all of them together. Unit: GiB. Default: none. Source:
    vLLM. Example: 64.0."""
    kv_offloading_backend: str | None = field(default=None, validator=optional(in_(OFFLOADING_BACKENDS)))
    """What offloads KV with `kv_offloading_size`. Default: native. Source: vLLM. Example: "native"."""
    limit_mm_per_prompt: LimitMmPerPrompt | None = None
    """Most images and videos in a prompt. Default: 999 of each. Source: vLLM. Example: {image = 4, video = 0}."""
    mm_processor_kwargs: MmProcessorKwargs | None = None
    """How the model's processor resizes images. Default: as its family does. Source: vLLM. Example:
    {max_pixels = 1003520}."""
    mm_encoder_tp_mode: str = field(default="weights", validator=in_(ENCODER_MODES))
    """Whether the GPUs of one rank share the weights of the vision encoder, or its images. Source: vLLM."""
    disable_chunked_mm_input: bool = False
    """Never end a chunk of a prompt inside an image. Source: vLLM."""
    language_model_only: bool = False
    """Take no images, and load no vision encoder. Source: vLLM."""
    speculative_config: SpeculativeConfig | None = None
    """How tokens are drafted and verified. Default: they are not. Source: vLLM. Example: {method = "ngram",
    num_speculative_tokens = 3, acceptance = {name = "geometric", rate = 0.6}}."""
    sglang: SglangSettings | None = None
    """Settings of SGLang's scheduler, for engines that have it. Default: those of the release. Source: SGLang. Example:
    {schedule_policy = "lpm"}."""

    def __attrs_post_init__(self) -> None:
        ranks, groups = self.tensor_parallel_size * self.data_parallel_size, self.expert_parallel_size
        if groups and (ranks % groups or not self.enable_expert_parallel):
            raise ValueError(f"expert_parallel_size = {groups} must divide the {ranks} GPUs that share the experts, and"
                             f" needs enable_expert_parallel")
        if "deepep" in self.all2all_backend and self.data_parallel_size > 1 and not self.enable_expert_parallel:
            raise ValueError(f"all2all_backend = {self.all2all_backend!r} sends tokens to whole experts; set"
                             f" enable_expert_parallel, or leave it at 'allgather_reducescatter'")
        for name, needed in (("moe_nvfp4_dispatch", "deepep"), ("enable_single_batch_overlap", "deepep_low_latency")):
            if getattr(self, name) and needed not in self.all2all_backend:
                raise ValueError(f"{name} is about tokens that DeepEP sends; set all2all_backend to"
                                 f" 'deepep_low_latency', or leave it out")
        self._check_placement(groups or ranks)
        self._check_overlap()
        self._check_micro_batches()
        check_lora(self)

    def _check_overlap(self) -> None:
        if (self.overlap_stages > 1) != (self.overlap_sms > 0):
            raise ValueError(f"overlap_stages = {self.overlap_stages} and overlap_sms = {self.overlap_sms}: set 2 or"
                             f" more stages and 1 SM or more, or neither")
        if self.overlap_stages > 1 and self.tensor_parallel_size == 1:
            raise ValueError(f"overlap_stages = {self.overlap_stages} needs a tensor_parallel_size of 2 or more; one"
                             f" GPU has nothing to all-reduce")

    def _check_micro_batches(self) -> None:
        """vLLM's conditions (config/vllm.py, docs/design/dbo.md), and those of adapters for experts, and of ksim."""
        if not self.enable_dbo:
            return
        if self.data_parallel_size == 1 or not self.enable_expert_parallel or "deepep" not in self.all2all_backend:
            raise ValueError("enable_dbo needs a data_parallel_size of 2 or more, enable_expert_parallel, and"
                             " all2all_backend = 'deepep_low_latency' or 'deepep_high_throughput'; set them, or leave"
                             " it out")
        if self.enable_lora:
            raise ValueError("enable_lora needs all2all_backend = 'allgather_reducescatter', and enable_dbo one of"
                             " DeepEP's; leave one out")
        if self.overlap_stages > 1:
            raise ValueError("enable_dbo and overlap_stages cut the same products; leave one out")

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
        chosen = QUANTIZATIONS[self.quantization]
        kept = chosen.kept if self.unquantized is None else tuple(self.unquantized)
        conv, state = STATE_DTYPES[self.mamba_cache_dtype], STATE_DTYPES[self.mamba_ssm_cache_dtype]
        return Precision(chosen.weights, chosen.activations, CACHE_DTYPES[self.kv_cache_dtype], kept, conv, state,
                         act_order=chosen.act_order, experts=chosen.experts)

    @property
    def placement(self) -> Placement:
        return Placement("balanced" if self.enable_eplb else self.expert_placement_strategy, self.num_redundant_experts)

    @property
    def drafted(self) -> int:
        """How many tokens are drafted for each sequence and step; 0 without speculative decoding."""
        return self.speculative_config.num_speculative_tokens if self.speculative_config else 0

    @property
    def slices(self) -> int:
        """How many GPUs share each expert of an expert-parallel group."""
        ranks = self.tensor_parallel_size * self.data_parallel_size
        return ranks // (self.expert_parallel_size or ranks)

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


_TARGET = optional(gt(0))


@frozen
class Slo:
    """Latency targets in seconds: to the first token, per token after it, and to the last; None sets no target."""

    ttft: Seconds | None = field(default=None, converter=optional_quantity, validator=_TARGET)
    """Time to first token, at most. Unit: s. Default: no target. Example: "200 ms"."""
    tpot: Seconds | None = field(default=None, converter=optional_quantity, validator=_TARGET)
    """Time per output token after the first, at most. Unit: s. Default: no target. Example: "15 ms"."""
    e2el: Seconds | None = field(default=None, converter=optional_quantity, validator=_TARGET)
    """Time from arrival to last token, at most. Unit: s. Default: no target. Example: "30 s"."""


@frozen
class SignalSettings:
    """The signals of engines: metrics that are scraped, and events that are sent.

    What a router sends and receives itself needs none of them, and is known at once.
    """

    scrape_interval: Seconds = field(default=0.05, converter=quantity, validator=ge(0))
    """How often the metrics of each engine are scraped; 0 shows them as they are at each moment. Unit: s. Source: llm-d
    (50 ms). Example: "200 ms"."""
    delay: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """Time until a scrape, or a batch of KV events, has arrived. Unit: s. Example: "5 ms"."""
    metrics: bool = True
    """Whether engines can be scraped for their metrics."""
    kv_events: bool = True
    """Whether engines send KV events: what enters and leaves their caches, and the tiers below. Source: vLLM
    (kv_events_config)."""
    loss: float = field(default=0.0, converter=quantity, validator=(ge(0), lt(1)))
    """Share of scrapes, and of batches of KV events, that are lost. Unit: share."""

    @property
    def exact_events(self) -> bool:
        """Whether KV events tell at every moment what is cached."""
        return not self.delay and not self.loss


@frozen
class Step:
    """Most tokens and most sequences in a step."""

    tokens: int = field(validator=validators.gt(0))
    sequences: int = field(validator=validators.gt(0))


@frozen
class Budget:
    """The limits of a step, by usage, on GPUs with at least `memory` bytes and no `exception` in their name.

    `largest_graph` is the most tokens of a step that decodes for which a CUDA graph is captured, where one to three
    GPUs share every layer, and where more do.
    """

    memory: float = field(converter=quantity, validator=validators.ge(0))
    openai_api_server: Step
    llm_class: Step
    exception: str = ""
    largest_graph: tuple[int, int] = (512, 512)

    def applies(self, gpu: str, memory: float) -> bool:
        """Whether the budget is for a GPU of this name and memory in bytes."""
        return memory >= self.memory and not (self.exception and self.exception in gpu.lower())

    def graph(self, settings: EngineSettings) -> int:
        """The largest CUDA graph of an engine with *settings*, by the GPUs of its tensor-parallel ranks."""
        return self.largest_graph[settings.tensor_parallel_size * settings.data_parallel_size > 3]


def _are_factors(_instance: Any, attribute: Any, table: Mapping[str, Any]) -> None:
    """Positive numbers, of GEMMs also by their rows."""
    for kernels, factor in table.items():
        by_rows = isinstance(factor, Mapping) and kernels.partition("/")[0] in ("gemm", "grouped_gemm") and all(
            map(str.isdecimal, factor))
        if not all(isinstance(one, int | float) and one > 0 for one in (factor.values() if by_rows else (factor,))):
            raise ValueError(f"{kernels!r}: expected a positive number, or for GEMMs such numbers by rows, as"
                             f" {{1 = 0.5, 512 = 0.9}}, not {factor!r}")


@frozen
class EngineVersion:
    """A release's defaults, and the decisions in which releases differ; the data files say what each means.

    `scheduler` is whose scheduler it has: those of other engines than SGLang are simulated by vLLM's.  An engine that
    has `prefill_graphs` captures piecewise graphs of prompts, of at most so many tokens where attention is latent, and
    else of a chunk; one with `breakable_graphs` does so on prefill servers, too, with data-parallel attention, and of
    most models that take images.  One with `trtllm_mha` takes TRT-LLM's attention kernels on Blackwell, and their
    pages.  In graphs of up to `dual_stream` tokens, shared experts of models with latent attention run beside the
    routed ones.
    `gpu_memory_utilization` is vLLM's default, and `free_gpu_memory_fraction` TensorRT-LLM's; an engine with neither
    reserves memory as SGLang does.  One that `starts_with_less_cache` than a request of the model's whole context takes
    refuses longer requests; the others do not start.  `state_prefix_caching` says whether prefixes are cached by
    default where layers have states, and `graph_of_max_num_seqs` whether a CUDA graph holds exactly so many sequences.
    `block_size` is the default; the attention kernels take blocks of any multiple of `block_multiple` tokens.
    `paces` are how long kernels of its libraries take, by "family/format of weights", over what profiles say of vLLM's;
    those in `ceilings` take at most so many times the roofline.  "gemm/fp8_block@hopper" is of one architecture, and
    {1 = 0.5, 512 = 0.9} by the fewest rows of a GEMM, or tokens of a grouped one.
    """

    name: str
    unhashed_blocks_first: bool
    cap_binds_lone_request: bool
    self_preemption_ends_turn: bool
    scheduler_reserve_full_isl: bool
    block_size: int
    unknown_settings: tuple[str, ...]
    budgets: tuple[Budget, ...] = field(validator=validators.min_len(1))
    source: str
    gpu_memory_utilization: float | None = None
    free_gpu_memory_fraction: float | None = None
    state_prefix_caching: bool = True
    starts_with_less_cache: bool = False
    graph_of_max_num_seqs: bool = False
    paces: Mapping[str, Any] = field(factory=dict, validator=_are_factors)
    ceilings: Mapping[str, Any] = field(factory=dict, validator=_are_factors)
    block_multiple: int = field(default=1, validator=validators.gt(0))
    scheduler: str = field(default="vllm", validator=in_(("vllm", "sglang")))
    prefill_graphs: int = 0
    breakable_graphs: bool = False
    trtllm_mha: bool = True
    dual_stream: int = 0

    def budget(self, gpu: str, memory: float) -> Budget:
        """The budget of a GPU of this name and memory in bytes; the last of `budgets` must apply to all GPUs."""
        return next(budget for budget in self.budgets if budget.applies(gpu, memory))

    def step(self, usage: str, gpu: str, memory: float) -> Step:
        """The limits of a step for *usage*, which names a field of `Budget`."""
        found: Step = getattr(self.budget(gpu, memory), usage)
        return found

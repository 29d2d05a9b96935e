"""One rank's share of a model: its layers, its experts, and the number formats that it computes in."""

from itertools import product
from math import ceil, isfinite

from attrs import Attribute, evolve, field, frozen
from attrs.validators import ge, le

from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType

#: Parts that a quantized checkpoint may leave in BF16: "attention_inputs" is attention without its output projection.
#: Embedding, head, router and norms always are in BF16.
PARTS = ("attention", "mlp", "shared_experts", "experts", "attention_inputs")


@frozen
class Quantization:
    """Formats of weights and of the activations that they are multiplied with, and the parts usually `kept` in BF16.

    With `act_order`, the groups of weights are not neighbours: activations are permuted before a product.  `experts`
    are the two formats of routed experts that have others than the rest.
    """

    weights: DType
    activations: DType
    kept: tuple[str, ...] = ()
    act_order: bool = False
    experts: tuple[DType, DType] | None = None


_EXPERTS_ALONE = ("attention", "mlp", "shared_experts")
_BF16 = Quantization(DType.BF16, DType.BF16)
_NVFP4 = Quantization(DType.NVFP4, DType.NVFP4)
#: Integers in groups of 128, each with a zero point: AWQ has them, and GPTQ's files do even where all are alike.
_GROUPED = Quantization(DType.INT4_G128_ZP, DType.BF16)
#: By vLLM's `--quantization`.  "auto" is that of the model's config.  What has activations in 16 bits is computed by
#: vLLM's Marlin and Triton kernels, and bitsandbytes by cuBLAS, after another kernel has made BF16 of the weights;
#: "mxfp4_mxfp8" is "mxfp4" with VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1, on Blackwell.  Of "deepseek_v4_fp8", which
#: `expert_dtype` in config.json implies, vLLM multiplies experts with FP8 on Blackwell, and elsewhere with 16 bits.
NAMED = {
    "auto": _BF16,
    "none": _BF16,
    "fp8": Quantization(DType.FP8, DType.FP8),
    "fp8_w8a16": Quantization(DType.FP8, DType.BF16),
    "fp8_block": Quantization(DType.FP8_BLOCK, DType.FP8),
    "fp8_block_w8a16": Quantization(DType.FP8_BLOCK, DType.BF16),
    "deepseek_v4_fp8": Quantization(DType.FP8_BLOCK, DType.FP8, experts=(DType.MXFP4, DType.FP8)),
    "deepseek_v4_fp8_w4a16": Quantization(DType.FP8_BLOCK, DType.FP8, experts=(DType.MXFP4, DType.BF16)),
    "nvfp4": _NVFP4,
    "modelopt_fp4": _NVFP4,
    "nvfp4_w4a16": Quantization(DType.NVFP4, DType.BF16),
    "mxfp4": Quantization(DType.MXFP4, DType.BF16, _EXPERTS_ALONE),
    "mxfp4_mxfp8": Quantization(DType.MXFP4, DType.FP8, _EXPERTS_ALONE),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin"), _GROUPED),
    "bitsandbytes": Quantization(DType.NF4_DOUBLE, DType.BF16),
    "bitsandbytes_single": Quantization(DType.NF4, DType.BF16),
    "bitsandbytes_8bit": Quantization(DType.INT8, DType.INT8),
    "int8_w8a8": Quantization(DType.INT8, DType.INT8),
    "int4_w4a16": Quantization(DType.INT4_BLOCK, DType.BF16),
}
#: What vLLM makes of a quantization on GPUs that do not multiply in a format: Marlin, whose activations have 16 bits.
WEIGHT_ONLY = {
    "fp8": ("fp8_w8a16", DType.FP8), "fp8_block": ("fp8_block_w8a16", DType.FP8),
    "nvfp4": ("nvfp4_w4a16", DType.FP4), "modelopt_fp4": ("nvfp4_w4a16", DType.FP4),
    "deepseek_v4_fp8": ("deepseek_v4_fp8_w4a16", DType.FP4),
}


def grouped(bits: int, group: int, zeros: bool = False, act_order: bool = False) -> str:
    """The quantization with weights of 4 or 8 *bits*, *group* of which share a scale, -1 for whole columns.

    Such as ``int4_w4a16_g128_zp``; with *zeros*, groups have zero points.
    """
    return (f"int{bits}_w{bits}a16_{'channel' if group == -1 else f'g{group}'}{'_zp' * zeros}"
            f"{'_act_order' * act_order}")


def _stored(bits: int, group: int, zeros: bool) -> DType:
    if group == -1:
        return DType.INT4 if bits == 4 else DType.INT8
    return DType.INT4_BLOCK if (bits, group, zeros) == (4, 32, False) else DType.named(
        f"int{bits}_g{group}{'_zp' * zeros}")


#: Sizes of groups that vLLM's kernels take, -1 for whole columns (marlin_utils.py, MARLIN_SUPPORTED_GROUP_SIZES).
GROUP_SIZES = (-1, 32, 64, 128)
#: `NAMED`, and integer weights in all sizes of groups.
QUANTIZATIONS = {**NAMED, **{
    grouped(bits, group, zeros, order): Quantization(_stored(bits, group, zeros), DType.BF16, act_order=order)
    for bits, group, zeros, order in product((4, 8), GROUP_SIZES, (False, True), (False, True))}}


@frozen
class KnownQuantization:
    """Checks that a quantization is one of the `options`, of which texts list those that are `shown`."""

    options: tuple[str, ...] = tuple(QUANTIZATIONS)
    shown: tuple[str, ...] = tuple(NAMED)

    def __call__(self, _: object, attribute: "Attribute[str]", value: str) -> None:
        if value not in self.options:
            raise ValueError(f"{attribute.name!r} must be in {', '.join(self.shown)}, or called as in int4_w4a16_g64_zp"
                             f" (docs/models.md, Formats of weights), not {value!r}")


#: By vLLM's `--kv-cache-dtype`.
CACHE_DTYPES = {"auto": DType.BF16, "bfloat16": DType.BF16, "fp8": DType.FP8}
#: By vLLM's `--mamba-cache-dtype` and `--mamba-ssm-cache-dtype`; "auto" is None.
STATE_DTYPES = {"auto": None, "float32": DType.FP32, "float16": DType.FP16, "bfloat16": DType.BF16}


@frozen
class Precision:
    """Number formats of weights, of the activations that they are multiplied with, and of the KV cache.

    Everything else computes in BF16, attention included, and so do the `kept` parts of `PARTS`.  With `act_order`,
    activations are permuted before they meet `weights`.  Layers with states
    keep those of convolutions in format `conv`, None for BF16, and the others in `state`, None for the model's.
    Routed experts may have two formats of their own, `experts`.
    """

    weights: DType = DType.BF16
    activations: DType = DType.BF16
    cache: DType = DType.BF16
    kept: tuple[str, ...] = ()
    conv: DType | None = None
    state: DType | None = None
    act_order: bool = False
    experts: tuple[DType, DType] | None = None

    def of(self, part: str) -> tuple[DType, DType]:
        """The formats of a part's weights and activations; "" stands for what is never kept."""
        kept = part in self.kept or (part == "attention_inputs" and "attention" in self.kept)
        own = self.experts if part == "experts" else None
        return (DType.BF16, DType.BF16) if kept else own or (self.weights, self.activations)

    def states(self, own: DType | None = None) -> tuple[DType, DType]:
        """The formats of convolutions' and of other states, which a model may have *own* ones for, as in vLLM."""
        conv = self.conv or DType.BF16
        return conv, self.state or own or conv


def _shares(table: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(share / sum(row) for share in row) if sum(row) else row for row in table)


@frozen(cache_hash=True)
class Routing:
    """How popular a mixture's experts are.

    Popularity follows Zipf's law with an `exponent` (0 makes all experts equal), in an order that is independent of
    which rank holds them.  Or it is given by `shares` of the (token, expert) pairs, expert by expert: one row for all
    layers, or one row for each.

    Where experts are drawn (`ksim.compute.expert_draws`), popularity may also move from step to step.  Its natural
    logarithm has a standard `deviation`, by expert and step; `step_correlation` is that of an expert's logarithms in
    two steps that follow each other, and `layer_correlation` that of experts with one number in neighbouring layers.
    """

    exponent: float = field(default=0.0, validator=ge(0))
    shares: tuple[tuple[float, ...], ...] = field(default=(), converter=_shares)
    deviation: float = field(default=0.0, validator=ge(0))
    step_correlation: float = field(default=0.0, validator=(ge(0), le(1)))
    layer_correlation: float = field(default=0.0, validator=(ge(0), le(1)))

    def __attrs_post_init__(self) -> None:
        for row in self.shares:
            if not all(isfinite(share) and share >= 0 for share in row) or not sum(row):
                raise ValueError("shares of experts must be finite numbers of 0 or more, and not all 0")

    def at(self, layer: int) -> "Routing":
        """The routing of one layer."""
        return evolve(self, shares=(self.shares[layer],)) if len(self.shares) > 1 else self


@frozen
class Placement:
    """Which ranks hold which experts: by a `strategy` of compute/placement.py, with `redundant` copies."""

    strategy: str = "linear"
    redundant: int = 0

    def slots(self, experts: int, ranks: int) -> int:
        """The experts that a rank holds, at most.

        Raises ConfigError where EPLB would need the same number on all ranks.
        """
        total = experts + self.redundant
        if self.strategy == "balanced" and total % ranks:
            raise ConfigError("serve.num_redundant_experts", f"{experts} experts and {self.redundant} redundant ones do"
                              f" not divide among {ranks} ranks; set it to {self.redundant + -total % ranks}")
        return ceil(total / ranks)


@frozen
class Shard:
    """One rank's share of a model: 1/`tensor` of each layer of pipeline stage `stage` of `stages`.

    `data` replicas, of `tensor` GPUs each, have batches and KV caches of their own and share a mixture's experts.  With
    `expert_parallel`, a GPU holds whole experts, else a slice of each; where `slices` is above 1, so many GPUs slice
    the experts that they hold together.  `exchange` is how replicas exchange tokens, as vLLM's `all2all_backend` names
    it; with `nvfp4_dispatch`, DeepEP sends them in NVFP4 where experts compute in it.  `routing` is how popular the
    experts are, and `placement` which rank holds which.  Convolutions keep `drafts` more tokens, which may be rejected.
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
    drafts: int = 0
    nvfp4_dispatch: bool = False

    def ranks(self, group: str) -> int:
        """How many ranks the rank's group of one kind has, such as "tensor"."""
        return int(getattr(self, group))

    @property
    def expert_groups(self) -> int:
        """The number of groups of GPUs among which whole experts are divided."""
        return self.expert_ranks // self.slices if self.expert_parallel else 1

    @property
    def expert_ranks(self) -> int:
        """GPUs that share the experts of a layer."""
        return self.tensor * self.data

    @property
    def scattered(self) -> bool:
        """Whether a tensor-parallel group splits its tokens over its ranks before the experts, as in vLLM."""
        return self.expert_parallel and self.data > 1 and self.tensor > 1

    def share(self, layers: int) -> range:
        """Which of *layers* layers this stage holds.

        As in vLLM, the remaining layers go to the stages before the last, one each, because the last has the head.
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

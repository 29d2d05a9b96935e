"""LoRA adapters beside a model's products: the modules that they adapt, and the launches of one rank for them.

vLLM keeps slots for `max_loras` adapters of `max_lora_rank` on each GPU.  A smaller adapter is padded to that rank, and
one without matrices for a module has zeros there.  So kernels depend on how many tokens each adapter has, and no more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from attrs import evolve, field, fields, frozen

from ksim.compute.graph import Collective, HostCopy, Op
from ksim.compute.kernels.basic import MAPPING, Counts, LoraGemm, Pointwise, Stage
from ksim.compute.model import Model
from ksim.compute.notation import Operation
from ksim.compute.notation.product import Product
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Shard

__all__ = ["LoraLayer", "LoraLoad", "LoraMapping", "LoraZero", "AdaptedProduct", "AdapterSlots", "adapted",
           "bytes_by_module", "matrices", "module_names", "slots_of", "MODULES", "AdapterInputs"]


@frozen(cache_hash=True)
class LoraLayer:
    """A shrink or an expand; batches without adapters have none, and CUDA graphs of their own."""

    stage: Stage
    widths: Counts
    rank: int

    of_adapters: ClassVar[bool] = True

    def over(self, batch: Batch) -> LoraGemm | None:
        """The kernel for the adapters of *batch*; None where there are none, and nothing is launched."""
        if not batch.adapters:
            return None
        return _gemm(self.stage, tuple(batch.adapters), self.widths, self.rank)


@lru_cache(maxsize=8192)
def _gemm(stage: Stage, adapters: tuple[int, ...], widths: Counts, rank: int) -> LoraGemm:
    """The launch; one object for equal launches, which are looked up faster."""
    return LoraGemm(stage, tuple(sorted(Counter(adapters).items())), widths, rank)


@frozen(cache_hash=True)
class LoraZero:
    """Clears the result of a shrink, whose blocks add to it: as many numbers a token as `width`."""

    width: int

    of_adapters: ClassVar[bool] = True

    def over(self, batch: Batch) -> Pointwise | None:
        rows = sum(batch.adapters)
        return Pointwise("lora_zero", 0.0, rows * self.width * DType.FP32.bytes, 0.0, rows) if rows else None


@frozen(cache_hash=True)
class LoraMapping:
    """Sorts the tokens of a step by their adapters."""

    of_adapters: ClassVar[bool] = True

    def over(self, batch: Batch) -> Pointwise | None:
        rows = sum(batch.adapters)
        return Pointwise("lora_mapping", 3.0 * MAPPING * rows, 3.0 * MAPPING * rows, rows, rows) if rows else None


@frozen(cache_hash=True)
class LoraLoad:
    """Copies adapters to their slots before a step: for each of `modules`, so many bytes here for a rank of theirs."""

    modules: tuple[tuple[str, float], ...]
    rate: float

    of_adapters: ClassVar[bool] = True
    of_loads: ClassVar[bool] = True

    def over(self, batch: Batch) -> HostCopy | None:
        """One copy of all adapters to load before *batch*; None where none has matrices for this stage."""
        size = sum(load.rank * each for load in batch.loads for module, each in self.modules
                   if not load.modules or module in load.modules)
        return HostCopy(size, self.rate) if size else None


#: The modules of vLLM that a product of this label is, and the checkpoint's modules that are packed in it.
MODULES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "qkv": ("qkv_proj", ("q_proj", "k_proj", "v_proj")), "o_proj": ("o_proj", ("o_proj",)),
    "gate_up": ("gate_up_proj", ("gate_proj", "up_proj")), "down": ("down_proj", ("down_proj",)),
    "shared_gate_up": ("gate_up_proj", ("gate_proj", "up_proj")), "shared_down": ("down_proj", ("down_proj",)),
    "router": ("gate", ("gate",)), "shared_gate": ("shared_expert_gate", ("shared_expert_gate",)),
    "qkv_down": ("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")), "q_up": ("q_b_proj", ("q_b_proj",)),
    "qkvz": ("in_proj_qkvz", ("in_proj_qkvz",)), "ba": ("in_proj_ba", ("in_proj_ba",)),
    "up": ("up_proj", ("up_proj",)), "shared_up": ("up_proj", ("up_proj",)),
    "kv_down": ("kv_a_proj_with_mqa", ("kv_a_proj_with_mqa",)),
    **dict.fromkeys(("experts_gate_up", "experts_up", "experts_down"), ("experts", ("experts",))),
}


@frozen
class AdapterSlots:
    """The slots for adapters on a GPU, and which modules have some: the `targets`, or all.

    Adapters come from host memory at `rate` bytes/s.
    """

    slots: int
    rank: int
    rate: float
    fully_sharded: bool = False
    targets: tuple[str, ...] | None = None

    def adapts(self, label: str) -> bool:
        """Whether products with this label have slots."""
        module, packed = _modules(label)
        return self.targets is None or bool({module, *packed} & {*self.targets})


def _modules(label: str) -> tuple[str, tuple[str, ...]]:
    return MODULES.get(label) or (label, (label,))


@frozen
class AdaptedProduct(Product):
    """A product with slots for adapters: after it, a shrink and an expand add what adapters make of the same input."""

    adapters: AdapterSlots = field(kw_only=True)

    @classmethod
    def of(cls, product: Product, slots: AdapterSlots) -> "AdaptedProduct":
        values: dict[str, Any] = {str(each.alias): getattr(product, each.name) for each in fields(Product)}
        return cls(**values, adapters=slots)

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        for op in super().lower(sizes, shard):
            yield op
            if op.label == self.label:
                yield from self._adapt(sizes, shard)

    def _adapt(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        """The launches after the product, and before the sum over ranks.

        With `fully_sharded`, ranks have a part of each of A's columns, or of its rows, and gather or add up its result.
        """
        slots, shape = self.adapters, self.shape(sizes, shard)
        tokens, label = sizes.on(self.parallel, shard, self.label).of["t"], f"{self.label}_lora"
        rank = slots.rank // shape.split_rank
        yield Op(f"{label}_zero", LoraZero(rank * len(shape.outs)))
        yield Op(f"{label}_shrink", LoraLayer("shrink", ((shape.inputs, len(shape.outs)),), rank))
        if shape.gathers:
            size = float(len(shape.outs) * tokens * slots.rank * DType.FP32.bytes)
            yield Op(f"{label}_{shape.gathers}", Collective(shape.gathers, size, "tensor"))
        widths = tuple(sorted(Counter(shape.outs).items()))
        yield Op(f"{label}_expand", LoraLayer("expand", widths, slots.rank))

    def shape(self, sizes: Sizes, shard: Shard) -> "_Shape":
        """The sizes of A and B on one rank."""
        local, part = sizes.on(self.parallel, shard, self.label), self.tensors.contractions[0]
        inputs, outs = local.volume(part.depth), _slices(self.label, local.volume(part.columns), local)
        split = {index for index, _ in self.parallel}
        if not self.adapters.fully_sharded or not split or shard.tensor == 1:
            return _Shape(inputs, outs)
        if split & {*part.depth}:
            return _Shape(inputs, tuple(out // shard.tensor for out in outs), gathers="all_reduce")
        return _Shape(inputs, outs, shard.tensor, "all_gather")

    def bytes_by_module(self, sizes: Sizes, shard: Shard) -> Iterator[tuple[str, float]]:
        """Bytes of an adapter on one rank for each rank of its own, by the checkpoint's modules."""
        shape, names = self.shape(sizes, shard), _modules(self.label)[1]
        for name, out in zip(names, shape.outs, strict=True):
            yield name, (shape.inputs / shape.split_rank + out) * DType.BF16.bytes

    def weights(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of the base model and of all slots, which vLLM sets aside when it loads the model."""
        return super().weights(sizes, shard) + self.slot_bytes(sizes, shard)

    def slot_bytes(self, sizes: Sizes, shard: Shard) -> float:
        """Bytes of all slots on one rank."""
        each = sum(size for _, size in self.bytes_by_module(sizes, shard))
        return self.adapters.slots * self.adapters.rank * each


@frozen
class _Shape:
    """The width of A's input and those of B's outputs on one rank; A's rank is divided by `split_rank`."""

    inputs: int
    outs: tuple[int, ...]
    split_rank: int = 1
    gathers: Any = ""


def _slices(label: str, columns: int, local: Sizes) -> tuple[int, ...]:
    """The columns of each of the modules that are packed in a product of *columns*."""
    count = len(_modules(label)[1])
    if label == "qkv":
        key = local.volume("Kh")
        return columns - 2 * key, key, key
    if label == "qkv_down":
        return columns - local.of["b"], local.of["b"]
    assert columns % count == 0, f"{label} is no {count} equal parts"
    return (columns // count,) * count


@frozen
class AdapterInputs:
    """The launches before a stage's first layer, which copy adapters to the GPU and sort tokens by adapters."""

    layers: Sequence[Sequence[Operation]] = field(repr=False)
    rate: float
    label: str = "lora"

    def lower(self, sizes: Sizes, shard: Shard) -> Iterator[Op]:
        layers = [self.layers[layer] for layer in shard.share(len(self.layers))]
        yield Op(f"{self.label}_load", LoraLoad(tuple(sorted(_by_module(layers, sizes, shard).items())), self.rate))
        yield Op(f"{self.label}_mapping", LoraMapping())


def adapted(model: Model, slots: AdapterSlots) -> Model:
    """*model* with slots for adapters in each product that may have some.

    Raises ConfigError for targets that it does not have, and for experts, whose adapters ksim has no kernels for.
    """
    decoder, made = model.decoder, dict[int, tuple[Operation, ...]]()
    _check_targets(model, slots)
    for layer in decoder.layers:
        if id(layer) not in made:
            made[id(layer)] = tuple(_adapted(op, slots) for op in layer)
    layers = tuple(made[id(layer)] for layer in decoder.layers)
    return evolve(model, decoder=evolve(decoder, layers=layers, inputs=(AdapterInputs(layers, slots.rate),)))


def _adapted(op: Operation, slots: AdapterSlots) -> Operation:
    if not isinstance(op, Product) or len(op.tensors.operands) != 2 or not slots.adapts(op.label):
        return op
    return AdaptedProduct.of(op, slots)


def _check_targets(model: Model, slots: AdapterSlots) -> None:
    known = {name for layer in model.decoder.layers for op in layer if isinstance(op, Product)
             for module, packed in [_modules(op.label)] for name in (module, *packed)}
    if strangers := [name for name in slots.targets or () if name not in known]:
        raise ConfigError("serve.lora_target_modules", f"{model.name} has no {strangers[0]!r} that ksim can adapt, only"
                                                       f" {', '.join(sorted(known - {'experts'}))}")
    routed = any(isinstance(op, Product) and op.routed and slots.adapts(op.label)
                 for layer in model.decoder.layers for op in layer)
    if routed:
        raise ConfigError("serve.enable_lora", f"{model.name} has experts, and ksim has no kernels for adapters of"
                                               f" experts; set lora_target_modules to modules without them, such as"
                                               f" {sorted(known & {'qkv_proj', 'o_proj', 'q_b_proj'})}")


def module_names(model: Model) -> set[str]:
    """The modules of the checkpoint that have slots."""
    return {name for layer in model.decoder.layers for op in layer if isinstance(op, AdaptedProduct)
            for name in _modules(op.label)[1]}


def slots_of(model: Model, shard: Shard) -> float:
    """Bytes of all slots on one rank."""
    sizes = Sizes(model.decoder.sizes)
    return sum(op.slot_bytes(sizes, shard) for layer in shard.share(model.layers)
               for op in model.decoder.layers[layer] if isinstance(op, AdaptedProduct))


def bytes_by_module(model: Model) -> Mapping[str, float]:
    """Bytes of an adapter for each rank of its own, by the checkpoint's modules, over all layers."""
    return _by_module(model.decoder.layers, Sizes(model.decoder.sizes), Shard())


def _by_module(layers: Sequence[Sequence[Operation]], sizes: Sizes, shard: Shard) -> Mapping[str, float]:
    totals = defaultdict[str, float](float)
    for layer in layers:
        for op in layer:
            if isinstance(op, AdaptedProduct):
                for module, size in op.bytes_by_module(sizes, shard):
                    totals[module] += size
    return totals


def matrices(model: Model) -> int:
    """The number of matrices of an adapter of all modules, A and B of each in each layer."""
    return sum(2 * len(_modules(op.label)[1]) for layer in model.decoder.layers for op in layer
               if isinstance(op, AdaptedProduct))

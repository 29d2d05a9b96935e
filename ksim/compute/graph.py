"""Kernel graphs: the launches of one rank in one step, equal layers folded.

`KernelSweep` has many kernels of one class as columns, so that they are counted and priced together.  `LayerCache` is
what a layer keeps of a request.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat, starmap
from math import comb, prod
from typing import Any, Literal, Protocol, TypeGuard, TypeVar, overload, runtime_checkable

import numpy as np
from attrs import fields, frozen
from numpy.typing import ArrayLike, NDArray

from ksim.compute.kernels import Kernel, Launch, Work
from ksim.flow.batch import Batch
from ksim.foundation.units import DType

T = TypeVar("T")

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "shift", "dispatch",
                         "combine", "low_latency_dispatch", "low_latency_combine"]


@runtime_checkable
class BatchDependent(Protocol):
    """A launch whose shape the batch decides; hashable, and equal where it launches the same for any batch."""

    def over(self, batch: Batch) -> Kernel | None:
        """The kernel that is launched for *batch*; None if it has nothing to do there."""
        ...


def is_batch_dependent(kernel: object) -> TypeGuard[BatchDependent]:
    """Whether the batch decides the shape of *kernel*: quicker than to ask whether the protocol knows it."""
    return hasattr(kernel, "over")


def is_of_adapters(kernel: object) -> bool:
    """Whether *kernel* is there for LoRA adapters: the batch decides its shape, and CUDA graphs capture it."""
    return hasattr(kernel, "of_adapters")


@frozen
class Fanout:
    """Where a token's experts are: `choices` of them, in `chosen` of `groups` equal groups of neighbours.

    By default, any experts may be chosen.  DeepSeek's gates first choose the groups with the best experts, and then
    experts in these alone (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """

    choices: int
    groups: int = 1
    chosen: int = 1

    def reached(self, parts: int) -> float:
        """How many of *parts* equal shares of the experts have one of a token's, in expectation.

        All experts are equally likely, and each chosen group has one at least.  Drawn scores of 256 experts in 8
        groups, of which 4 are chosen, reach up to 5 % fewer of 2 to 128 parts.  Where parts and groups do not lie in
        each other, groups are left out.
        """
        if self.groups > self.chosen and parts % self.groups == 0:
            own = parts // self.groups
            return float(self.chosen * own * (1 - (1 - 1 / own) ** (self.choices / self.chosen)))
        if self.groups > self.chosen and self.groups % parts == 0:
            others = self.groups - self.groups // parts
            return parts * (1 - comb(others, self.chosen) / comb(self.groups, self.chosen))
        return parts * (1 - (1 - 1 / parts) ** self.choices)


@frozen
class Collective:
    """A message that every rank of `group` takes part in.

    `bytes` counts as NCCL's tests do: the whole result of all_reduce and all_gather, the whole input of reduce_scatter,
    what one rank holds for all_to_all, send and shift (every rank sends to the next).  DeepEP's `dispatch` and
    `combine` count all copies of one rank's tokens, also those that stay on it; with a `fanout`, a token has one copy
    for each rank that it reaches, and one copy for each node passes between nodes.  `sms` limits the SMs that it may
    use.
    """

    kind: CollectiveKind
    bytes: float
    group: str
    sms: int = 0
    fanout: Fanout | None = None

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:.3g} MB" + (f" on {self.sms} SMs" if self.sms else "")

    @property
    def family(self) -> str:
        return self.kind


@frozen
class HostCopy:
    """`bytes` that come from host memory at `rate` bytes/s, as a flow alone on the GPU's lanes does.

    A stream of kernels waits for it like for a kernel.  It is priced by its rate, and no oracle is asked about it.
    """

    bytes: float
    rate: float

    family = "host_copy"

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:.3g} MB"

    @property
    def seconds(self) -> float:
        return self.bytes / self.rate

    @property
    def work(self) -> Work:
        return Work(0.0, 0.0, self.bytes, DType.BF16)

    def launches(self, sms: int) -> Sequence[Launch]:
        return ()


@frozen(cache_hash=True)
class Op:
    """One launch of one rank.

    Where ranks differ, `kernel` is that of the fullest, which the others wait for, and `mean` has the work
    of the average one.  It runs `beside` another launch where that keeps the GPU busy meanwhile.
    """

    label: str
    kernel: Kernel | BatchDependent | Collective
    mean: Kernel | None = None
    beside: "Op | None" = None


@frozen
class Block:
    """Ops that run `repeat` times over, such as a model's equal layers."""

    ops: tuple[Op, ...]
    repeat: int = 1


@frozen
class KernelGraph:
    """The launches of one rank for any step with the same numbers of tokens and samples."""

    blocks: tuple[Block, ...]

    def over(self, batch: Batch) -> Iterator[tuple[str, Kernel | Collective]]:
        """All launches for *batch* with their labels, unfolded."""
        for block in self.blocks:
            ops = [(op.label, bind(op.kernel, batch)) for op in block.ops]
            launched = [(label, kernel) for label, kernel in ops if kernel is not None]
            for _ in range(block.repeat):
                yield from launched


def bind(kernel: Kernel | BatchDependent | Collective, batch: Batch) -> Kernel | Collective | None:
    """The kernel or collective that is launched for *batch*; None if there is none."""
    return kernel.over(batch) if hasattr(kernel, "over") else kernel


def fold(layers: Sequence[T]) -> list[tuple[Sequence[T], int]]:
    """Cut *layers* into runs and how often each repeats; each run is the one that covers most layers from there."""
    folded, rest = [], layers
    while rest:
        size, repeats = _longest_run(rest)
        folded.append((rest[:size], repeats))
        rest = rest[size * repeats :]
    return folded


def _longest_run(layers: Sequence[T]) -> tuple[int, int]:
    """The number of first *layers* to repeat, and how often they do, that cover most of them."""
    best = (1, 1)
    for size in range(1, len(layers) // 2 + 1):
        repeats = _repeats(layers, size)
        if repeats > 1 and size * repeats > prod(best):
            best = size, repeats
        if size * repeats == len(layers):
            break
    return best


def _repeats(layers: Sequence[T], size: int) -> int:
    """The number of times that the first *size* of *layers* come in a row."""
    count = 1
    while layers[count * size : (count + 1) * size] == layers[:size]:
        count += 1
    return count


@frozen(eq=False)
class KernelSweep(Sequence[Kernel]):
    """Kernels of one class that differ in their numbers alone; as a sequence, it makes them one by one.

    `kernel` is a single object whose numbers are columns of (kernels,), and so is its `work`.  A number that all
    kernels share may stay a number, but one at least is a column.

    Kernels may also differ in their family, as those that only move memory do: then `families` lists the names, and
    `codes` has the place of each kernel's among them.
    """

    kernel: Any
    families: Sequence[str]
    codes: NDArray[np.intp] | None = None

    @classmethod
    def of(cls, kernel: Any) -> "KernelSweep":
        """Kernels of one family."""
        return cls(kernel, (kernel.family,))

    def __len__(self) -> int:
        if self.codes is not None:
            return len(self.codes)
        values = (getattr(self.kernel, one.name) for one in fields(type(self.kernel)))
        return next(len(value) for value in values if isinstance(value, np.ndarray))

    @overload
    def __getitem__(self, row: int) -> Kernel: ...

    @overload
    def __getitem__(self, row: slice) -> list[Kernel]: ...

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [*self][row]
        return type(self.kernel)(*[value.item(row) if isinstance(value, np.ndarray) else value
                                   for value in self._values])

    def __iter__(self) -> Iterator[Kernel]:
        columns = [value.tolist() if isinstance(value, np.ndarray) else repeat(value, len(self))
                   for value in self._values]
        return starmap(type(self.kernel), zip(*columns, strict=True))

    def shapes(self) -> list[str]:
        """The text of each kernel."""
        return list(map(str, self))

    def spread(self, by_family: ArrayLike) -> NDArray[Any]:
        """The value *by_family* of each kernel: (kernels,)."""
        values = np.asarray(by_family)
        return np.broadcast_to(values[0], len(self)) if self.codes is None else values[self.codes]

    @cached_property
    def _values(self) -> list[Any]:
        """The kernel's fields in order, with a column of families where there are several."""
        families = None if self.codes is None else np.asarray(self.families)[self.codes]
        return [families if one.name == "family" and families is not None else getattr(self.kernel, one.name)
                for one in fields(type(self.kernel))]


@frozen
class LayerCache:
    """One layer's cache on one rank: bytes of every token that the layer may still see, or of a sequence of any length.

    A layer with a `window` sees the last so many tokens.  One with a `chunk` sees the tokens of its own chunk, of so
    many.  Without either, it sees all.  A layer that keeps a state has `sequence_bytes` and no `token_bytes`.  Amid a
    chunk of a prompt, it can keep the state after each `checkpoint` tokens; 0: only at the end of a chunk.

    A layer whose kernels need blocks of so many tokens names them as `block_tokens`; 0: those of the engine.  Pages of
    such layers are packed side by side, whatever their sizes.
    """

    token_bytes: float = 0.0
    sequence_bytes: float = 0.0
    window: int = 0
    chunk: int = 0
    checkpoint: int = 0
    block_tokens: int = 0

    @property
    def sees_all(self) -> bool:
        """Whether it needs the keys and values of all tokens."""
        return bool(self.token_bytes) and not self.window and not self.chunk

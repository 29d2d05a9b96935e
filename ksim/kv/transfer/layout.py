"""Which GPU of an engine holds which part of the KV cache, and what each must get from which other."""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from attrs import frozen

__all__ = ["KvLayout", "LayerShare", "Piece", "plan"]


@frozen
class LayerShare:
    """A layer's KV cache on one GPU: `bytes` per token, and `state` bytes per sequence.

    The layer is of pipeline stage `stage`.  Its KV heads are cut in `slices`, of which each GPU holds one; if there are
    more GPUs than slices, several hold the same.
    """

    stage: int
    bytes: float
    slices: int = 1
    state: float = 0.0


@frozen(cache_hash=True)
class KvLayout:
    """The KV cache of an engine with `ranks` GPUs in each pipeline stage, layer by layer."""

    ranks: int
    layers: tuple[LayerShare, ...]

    @property
    def per_token(self) -> float:
        """Bytes of one token on all GPUs together."""
        return self.ranks * sum(layer.bytes for layer in self.layers)


@frozen
class Piece:
    """What GPU number `target` of one engine gets from GPU number `source` of another: bytes by token and sequence.

    GPUs are numbered within their engines, stage by stage.
    """

    source: int
    target: int
    per_token: float
    per_sequence: float


@lru_cache(maxsize=256)
def plan(source: KvLayout, target: KvLayout) -> tuple[Piece, ...]:
    """What moves between engines with these layouts so that *target* has all that its GPUs hold.

    Each GPU gets its heads from GPUs that hold them.  Where several do, the GPUs of *target* take turns.
    """
    moved: dict[tuple[int, int], list[float]] = {}
    for here, there in zip(source.layers, target.layers, strict=True):
        for rank in range(target.ranks):
            for giver, part in _givers(here.slices, source.ranks, there.slices, target.ranks, rank):
                pair = here.stage * source.ranks + giver, there.stage * target.ranks + rank
                known = moved.setdefault(pair, [0.0, 0.0])
                known[0] += float(part) * there.bytes
                known[1] += float(part) * there.state
    return tuple(Piece(*pair, *amounts) for pair, amounts in sorted(moved.items()))


def _givers(cut: int, ranks: int, wanted_cut: int, wanting: int, rank: int) -> Sequence[tuple[int, Fraction]]:
    """Which of *ranks* GPUs, with one of *cut* slices each, give which part of its slice to GPU *rank*.

    That is one of *wanting* GPUs, with one of *wanted_cut* slices each.
    """
    wanted = rank * wanted_cut // wanting
    begin, end = Fraction(wanted, wanted_cut), Fraction(wanted + 1, wanted_cut)
    first, last = int(begin * cut), -int(-end * cut // 1)
    givers = []
    for index in range(first, last):
        part = min(end, Fraction(index + 1, cut)) - max(begin, Fraction(index, cut))
        holders = [holder for holder in range(ranks) if holder * cut // ranks == index]
        givers.append((holders[rank % len(holders)], part * wanted_cut))
    return givers

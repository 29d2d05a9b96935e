"""All-reduces: in a ring, in one shot or two, and over the switch."""

from collections.abc import Iterator, Sequence

from attrs import field, frozen
from attrs.validators import gt

from ksim.network.collectives import Round, Transfer
from ksim.network.links import FUSED, FUSED_TWO_SHOT, NCCL, NVLS, ONE_SHOT, SYMMETRIC, TWO_SHOT

__all__ = ["Ring", "Direct", "TwoShot", "Symmetric", "Nvls", "Fused", "FusedTwoShot"]

_LAPS = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}


@frozen
class Ring:
    """The ring: bandwidth-optimal, with a round for every hop.

    It takes n - 1 rounds to reduce and scatter, n - 1 to gather, both for an all-reduce (Patarasuk and Yuan, 2009).
    """

    protocols = NCCL

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind in _LAPS

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        """Pass one piece to the right-hand neighbour per round."""
        n, start = len(ranks), 1 if kind == "all_gather" else 0
        for hop in range(_LAPS[kind] * (n - 1)):
            yield [Transfer(ranks[i], ranks[(i + 1) % n], ((i - hop - 1 + start) % n,)) for i in range(n)]


@frozen
class Direct:
    """One-shot all-reduce: everyone reads everyone's whole message, best for small ones on a switch.

    vLLM's custom all-reduce takes 2 to 8 GPUs of one NVLink domain, or two over PCIe; one-shot is half of it.
    """

    protocols = ONE_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        everything = tuple(range(len(ranks)))
        yield [Transfer(a, b, everything) for a in ranks for b in ranks if a != b]


@frozen
class TwoShot:
    """Two-shot all-reduce: scatter and reduce at once, then gather at once.

    The other half of vLLM's custom all-reduce: a ring's traffic in two rounds.
    """

    protocols = TWO_SHOT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (4, 6, 8)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        pairs = [(i, j) for i in range(len(ranks)) for j in range(len(ranks)) if i != j]
        yield [Transfer(ranks[i], ranks[j], (j,)) for i, j in pairs]
        yield [Transfer(ranks[i], ranks[j], (i,)) for i, j in pairs]


@frozen
class Symmetric(TwoShot):
    """All-reduce in PyTorch's symmetric memory, through the switch: vLLM's way between its own all-reduce and NCCL's.

    Small groups do without the switch's adding, which their measured share of the bandwidth says.
    """

    protocols = SYMMETRIC

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 6, 8)


@frozen
class Nvls(TwoShot):
    """NVLS: the switch adds up what all GPUs have, and copies the sum to all; best for large messages.

    NCCL's all-reduce through NVSwitch.

    On Hopper and Blackwell it is seen among eight GPUs and not among four, and in gathering or scattering alone not
    at all: there a ring is as fast.  A piece goes to its owner and back; the two overlap, which is why its share may
    exceed 1.
    """

    protocols = NVLS

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks > 4


@frozen
class Fused(Direct):
    """TensorRT-LLM's all-reduce of small messages, which FlashInfer fuses with the norm that follows.

    Everyone sends everyone the whole message, of up to `most` bytes, and adds up what comes.  The norm is priced as if
    it were a kernel of its own: it has to wait for the sum, and with it left out, small steps of mixtures on two to
    eight B200 come out 15 to 25 % too short where those on one do not (docs/evidence/silicon.md).
    """

    most: float = field(default=2.0**40, validator=gt(0))
    protocols = FUSED

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind == "all_reduce" and ranks in (2, 4, 8) and size <= self.most


@frozen
class FusedTwoShot(Fused):
    """TensorRT-LLM's all-reduce of larger messages: scatter and reduce at once, then gather at once.

    The other half of `fused`, of messages of up to `most` bytes.
    """

    protocols = FUSED_TWO_SHOT

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        return TwoShot().rounds(kind, ranks)

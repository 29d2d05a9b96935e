"""Exchanges in which every rank sends to every other at once, or two do."""

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import frozen

from ksim.network.collectives import Round, Transfer
from ksim.network.links import DEEPEP, POINT_TO_POINT

__all__ = ["Pairwise", "Deepep"]


@frozen
class Pairwise:
    """Pairwise: everyone sends to everyone what is theirs, or all to the next, at once; or one rank to another.

    NCCL's grouped send and receive.
    """

    protocols = POINT_TO_POINT

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind in {"all_to_all", "shift"} or (kind == "send" and ranks == 2)

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        n = len(ranks)
        if kind == "send":
            yield [Transfer(ranks[0], ranks[1], (0, 1))]
        elif kind == "shift":
            yield [Transfer(ranks[i], ranks[(i + 1) % n], tuple(range(n))) for i in range(n)]
        else:
            yield [Transfer(ranks[i], ranks[j], (j,)) for i in range(n) for j in range(n) if i != j]


@frozen
class Deepep:
    """DeepEP: every rank sends its tokens to the ranks of their experts, and gets the results back.

    Its low-latency kernels send straight to them, over NVLink or from NIC to NIC.  So do the others within a node.
    Between nodes, these send a token once to each node, to the GPU in the same place, which forwards it over NVLink;
    results come back by the same way, added up before they leave a node
    (github.com/deepseek-ai/DeepEP, docs/legacy.md, csrc/kernels/internode.cu).
    """

    protocols = DEEPEP

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        return kind in {protocol.kind for protocol in DEEPEP}

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        n = len(ranks)
        yield [Transfer(ranks[i], ranks[j], (j,)) for i in range(n) for j in range(n) if i != j]

    def across(self, kind: str, ranks: Sequence[int], nodes: Sequence[Sequence[int]]) -> Iterator[Round] | None:
        """The rounds among *nodes*, each given by its ranks; None for low-latency kernels, which go the direct way."""
        if kind == "dispatch":
            return _dispatched(ranks, nodes)
        return _combined(ranks, nodes) if kind == "combine" else None


def _peers(nodes: Sequence[Sequence[int]]) -> Iterator[tuple[int, Sequence[int], int]]:
    """Yield each rank, each other node, and the rank of that node in the same place."""
    for own in nodes:
        for place, rank in enumerate(own):
            yield from ((rank, other, other[place % len(other)]) for other in nodes if other is not own)


def _dispatched(ranks: Sequence[int], nodes: Sequence[Sequence[int]]) -> Iterator[Round]:
    """To the peer in each other node, and from there to all ranks of the node."""
    piece = {rank: number for number, rank in enumerate(ranks)}
    yield [Transfer(rank, peer, tuple(piece[target] for target in other)) for rank, other, peer in _peers(nodes)]
    # A rank forwards what came from its peers as it sends its own.
    senders = Counter(peer for _, _, peer in _peers(nodes))
    yield [Transfer(source, target, (piece[target],) * (1 + senders[source]))
           for node in nodes for source in node for target in node if source != target]


def _combined(ranks: Sequence[int], nodes: Sequence[Sequence[int]]) -> Iterator[Round]:
    """To the rank of the same node that is the peer of the token's, which adds up, and from there to the token's."""
    piece = {rank: number for number, rank in enumerate(ranks)}
    gathered: dict[tuple[int, int], list[int]] = {(source, target): [piece[target]] for node in nodes
                                                  for source in node for target in node if source != target}
    for rank, other, peer in _peers(nodes):
        for source in other:
            if source != peer:
                gathered[source, peer].append(piece[rank])
    yield [Transfer(source, target, tuple(pieces)) for (source, target), pieces in gathered.items()]
    # One result for each rank of the node, before they are added up.
    yield [Transfer(peer, rank, (piece[rank],) * len(other)) for rank, other, peer in _peers(nodes)]

"""Collective algorithms: who sends which pieces to whom, in rounds.

To add one, add a file with an attrs class that has the members of
`CollectiveAlgorithm`.  It says nothing of sizes, links or time: a message has
as many equal pieces as the group has ranks, and the network prices the rounds.
`tests/laws` moves sets of contributors instead of numbers, and checks that
every rank ends up with what the collective promises.

An algorithm that goes another way among several nodes also has `across`:
it takes the ranks of each node, and gives None for kinds without such a way.
Its messages are tokens that flow through all rounds at once, so that it takes
as long as the slowest round; copies of a token for ranks of one node pass
between nodes as one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from attrs import frozen

from ksim.network.links import Protocol as Transport

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "shift", "dispatch", "combine",
         "low_latency_dispatch", "low_latency_combine")


@frozen
class Transfer:
    """Rank *source* sends the numbered pieces of the message to rank *target*."""

    source: int
    target: int
    pieces: tuple[int, ...]


Round = list[Transfer]


class CollectiveAlgorithm(Protocol):
    #: Transport protocols that it can run on.
    protocols: Sequence[Transport]

    def takes(self, kind: str, ranks: int, size: float) -> bool:
        """Whether it does *kind* among so many ranks, with a message of *size* bytes."""
        ...

    def rounds(self, kind: str, ranks: Sequence[int]) -> Iterator[Round]:
        """The transfers of each round; a rank enters a round when it has sent and received all of the one before."""
        ...


def rounds_across(algorithm: CollectiveAlgorithm, kind: str, ranks: Sequence[int],
                  node_of: Callable[[int], int]) -> list[Round] | None:
    """The rounds by which *algorithm* goes among *ranks* of several nodes; None where it goes as within one."""
    across = getattr(algorithm, "across", None)
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(node_of(rank), []).append(rank)
    if across is None or len(nodes) < 2:
        return None
    rounds = across(kind, ranks, list(nodes.values()))
    return None if rounds is None else list(rounds)

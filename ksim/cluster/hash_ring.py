"""A ring of hashes: keys and engines are points on it, and a key belongs to the next engine clockwise."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from attrs import define, field


def point(text: str) -> int:
    """Where *text* is on the ring: 64 bits, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@define
class HashRing:
    """Each of the engines numbered `members` has so many `virtual_nodes`, which even out the shares of the ring."""

    members: Sequence[int]
    virtual_nodes: int
    _points: list[int] = field(init=False)
    _owners: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        placed = sorted((point(f"engine {number} node {node}"), number)
                        for number in self.members for node in range(self.virtual_nodes))
        self._points, self._owners = [place for place, _ in placed], [number for _, number in placed]

    def clockwise(self, key: str) -> Iterator[int]:
        """The engines in the order in which one meets them clockwise from *key* on, each once."""
        start, met = bisect_left(self._points, point(key)), set[int]()
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if owner not in met:
                met.add(owner)
                yield owner

"""One choice of llm-d's endpoint picker, and what its parts have found out for it."""

from collections.abc import Mapping, MutableMapping
from typing import Any

from attrs import define, field, frozen

from ksim.flow.request import Request
from ksim.foundation.rng import stream

__all__ = ["APPROXIMATE", "IN_FLIGHT", "PRECISE", "Chance", "Cycle", "Load", "Match"]

#: The producers that parts read unless their parameters name others.
APPROXIMATE, PRECISE, IN_FLIGHT = ("approx-prefix-cache-producer", "precise-prefix-cache-producer",
                                   "inflight-load-producer")


@define(eq=False)
class Chance:
    """Draws random numbers from a stream of *seed*, which is made when it is first needed."""

    seed: int
    name: str = "llm_d"
    _stream: Any = field(default=None, init=False)

    @property
    def stream(self) -> Any:
        if self._stream is None:
            self._stream = stream(self.seed, self.name)
        return self._stream

    def below(self, count: int) -> int:
        """A whole number from 0 to *count* - 1."""
        return int(self.stream.integers(count))

    def share(self) -> float:
        """A number from 0 to 1, and less than that."""
        return float(self.stream.random())


@frozen
class Match:
    """How much of a prompt engines have, by their numbers: of `total` blocks those in `blocks`, if any.

    Where lower tiers are known, a block in one counts as less than one in `weighted`, and `blocks` are whole ones of
    these.
    """

    total: int
    block_tokens: int
    blocks: Mapping[int, int] = field(factory=dict)
    weighted: Mapping[int, float] = field(factory=dict)

    def share(self, number: int) -> float:
        """The share of the prompt that engine *number* has."""
        return self.blocks.get(number, 0) / self.total if self.total else 0.0

    def tokens(self, number: int) -> int:
        return self.blocks.get(number, 0) * self.block_tokens


@frozen
class Load:
    """What was sent to engines and is in flight, and what the request at hand would add, by their numbers."""

    requests: Mapping[int, int]
    tokens: Mapping[int, int]
    added: Mapping[int, int]


@define(eq=False)
class Cycle:
    """What parts know of a choice: the request, the time, chance, and what producers found, by their names."""

    request: Request
    now: float
    chance: Chance
    matches: MutableMapping[str, Match] = field(factory=dict)
    loads: MutableMapping[str, Load] = field(factory=dict)

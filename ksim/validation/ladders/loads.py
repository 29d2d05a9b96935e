"""The loads of ladders, as the generator inference-perf makes them."""

import itertools
from collections.abc import Iterator

import numpy as np
from attrs import field, frozen
from attrs.validators import ge, gt, in_

from ksim.flow.request import Request
from ksim.foundation.rng import stream

#: Tokens of a piece of a prompt that others may share.
_CHUNK = 128
#: Seconds from the end of a stage to the next one: longer than any stage takes to drain, which the next one waits for.
REST = 1800.0


@frozen
class Load:
    """Stages at `rates` requests per second, of `seconds` each, and the prompts that they send.

    Arrivals are "constant", which places as many as a stage has at random in it, or "poisson", which does so second by
    second.  Prompts of `prefix` + `question` tokens come in `groups` that share the prefix, `each` to a group; they are
    shuffled once, and every stage starts with the first.  Without groups, no two prompts share anything.
    """

    rates: tuple[float, ...]
    seconds: float = field(validator=gt(0))
    question: int = field(validator=gt(0))
    output: int = field(validator=gt(1))
    arrivals: str = field(default="constant", validator=in_(("constant", "poisson")))
    prefix: int = field(default=0, validator=ge(0))
    groups: int = field(default=0, validator=ge(0))
    each: int = field(default=1, validator=gt(0))

    @property
    def counts(self) -> list[int]:
        """The number of requests of each stage."""
        return [int(rate * self.seconds) for rate in self.rates]

    def starts(self) -> list[float]:
        """When each stage starts."""
        return [stage * (self.seconds + REST) for stage in range(len(self.rates))]

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield the requests of all stages in order; the same for the same *seed*."""
        times, order = stream(seed, "ladder.arrivals"), self._order(seed)
        ids = itertools.count()
        for start, count in zip(self.starts(), self.counts, strict=True):
            for arrival, prompt in zip(self._arrivals(times, count), itertools.cycle(order), strict=False):
                number = next(ids)
                yield Request(number, start + arrival, self.prefix + self.question, self.output,
                              self._chunks(number if prompt < 0 else prompt), _CHUNK)

    def _order(self, seed: int) -> list[int]:
        """The prompts in the order in which every stage sends them; -1 for one that nobody else sends."""
        if not self.groups:
            return [-1]
        order: list[int] = stream(seed, "ladder.prompts").permutation(self.groups * self.each).tolist()
        return order

    def _arrivals(self, rng: "np.random.Generator", count: int) -> list[float]:
        """Sorted times of *count* requests, from the start of their stage."""
        if self.arrivals == "constant":
            return sorted(rng.uniform(0, self.seconds, count).tolist())
        seconds = rng.integers(0, int(self.seconds), count)  # Poisson counts by second, given their sum
        return sorted((seconds + rng.uniform(0, 1, count)).tolist())

    def _chunks(self, prompt: int) -> tuple[tuple[int, int], ...]:
        """Names of the prompt's pieces: of its group's as far as the prefix goes, then its own."""
        shared = self.prefix // _CHUNK if self.groups else 0
        pieces = (self.prefix + self.question) // _CHUNK
        return (*((-1 - prompt // self.each, piece) for piece in range(shared)),
                *((prompt, piece) for piece in range(shared, pieces)))

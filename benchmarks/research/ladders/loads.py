"""The loads of ladders, as the generator inference-perf makes them."""

import itertools
import math
import re
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

import numpy as np
from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_

from ksim.flow.request import Request
from ksim.foundation.rng import stream

#: The most tokens of a piece of a prompt that others may share, and the fewest: no engine shares less than a block.
_CHUNK, _BLOCK = 128, 16
#: Seconds from the end of a stage to the next one: longer than any stage takes to drain, which the next one waits for.
REST = 1800.0
_STAGE = re.compile(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)")


@frozen
class Stage:
    """`rate` requests per second for so many `seconds`; `shown` if the table of the ladder has it."""

    rate: float
    seconds: float
    shown: bool = True

    @property
    def count(self) -> int:
        """The number of its requests."""
        return int(self.rate * self.seconds)


def _stages(load: Any, attribute: "Attribute[str]", value: str) -> None:
    """Check that *value* is as RATExSECONDS, with spaces between."""
    words = value.split()
    if not all(map(_STAGE.fullmatch, words)) or not (words or attribute.name == "warm_up"):
        raise ValueError(f"expected stages as RATExSECONDS, such as '3x20 10x20', not {value!r}")
    if any(stage.count < 1 for stage in _read(value)):
        raise ValueError(f"a stage of {value!r} has no request")


def _read(text: str, shown: bool = True) -> list[Stage]:
    return [Stage(float(rate), float(seconds), shown) for rate, seconds in _STAGE.findall(text)]


@frozen(slots=False)
class Load:
    """Requests in `stages`, each at so many requests per second for so many seconds: "3x20 10x20".

    Stages of the `warm_up` come before, and are not in the table.  Arrivals are "constant", which places as many as a
    stage has at random in it, or "poisson", which does so second by second.  Prompts of `prefix` + `question` tokens
    come in `groups` that share the prefix, `each` to a group; they are shuffled once, and every stage starts with the
    first.  Without groups, no two prompts share anything.

    An answer has `output` tokens.  The generator tokenizes its text again, and `counted` is what it makes of it; text
    of random tokens rarely comes out as long as it was.
    """

    stages: str = field(validator=_stages)
    question: int = field(validator=gt(0))
    output: int = field(validator=gt(1))
    warm_up: str = field(default="", validator=_stages)
    arrivals: str = field(default="constant", validator=in_(("constant", "poisson")))
    prefix: int = field(default=0, validator=ge(0))
    groups: int = field(default=0, validator=ge(0))
    each: int = field(default=1, validator=gt(0))
    counted: float | None = None

    @cached_property
    def plan(self) -> list[Stage]:
        """All stages, in their order."""
        return [*_read(self.warm_up, shown=False), *_read(self.stages)]

    @property
    def answer(self) -> float:
        """Tokens of an answer, as the generator counts them."""
        return self.output if self.counted is None else self.counted

    def starts(self) -> list[float]:
        """When each stage starts."""
        ends = itertools.accumulate(stage.seconds + REST for stage in self.plan)
        return [0.0, *ends][:-1]

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield the requests of all stages in order; the same for the same *seed*."""
        times, order = stream(seed, "ladder.arrivals"), self._order(seed)
        ids, pieces = itertools.count(), cache(self._chunks) if self.groups else self._chunks
        for start, stage in zip(self.starts(), self.plan, strict=True):
            for arrival, prompt in zip(self._arrivals(times, stage), itertools.cycle(order), strict=False):
                number = next(ids)
                yield Request(number, start + arrival, self.prefix + self.question, self.output,
                              pieces(number if prompt < 0 else prompt), self.chunk)

    @property
    def chunk(self) -> int:
        """Tokens of a piece of a prompt.  Where they divide the prefix, no piece has tokens of the question too."""
        return max(math.gcd(_CHUNK, self.prefix), _BLOCK) if self.groups else _CHUNK

    def _order(self, seed: int) -> list[int]:
        """The prompts in the order in which every stage sends them; -1 for one that nobody else sends."""
        if not self.groups:
            return [-1]
        order: list[int] = stream(seed, "ladder.prompts").permutation(self.groups * self.each).tolist()
        return order

    def _arrivals(self, rng: "np.random.Generator", stage: Stage) -> list[float]:
        """Sorted times of a stage's requests, from its start."""
        if self.arrivals == "constant":
            return sorted(rng.uniform(0, stage.seconds, stage.count).tolist())
        seconds = rng.integers(0, int(stage.seconds), stage.count)  # Poisson counts by second, given their sum
        return sorted((seconds + rng.uniform(0, 1, stage.count)).tolist())

    def _chunks(self, prompt: int) -> tuple[tuple[int, int], ...]:
        """Names of the prompt's pieces: of its group's as far as the prefix goes, then its own."""
        shared = self.prefix // self.chunk if self.groups else 0
        pieces = (self.prefix + self.question) // self.chunk
        return (*((-1 - prompt // self.each, piece) for piece in range(shared)),
                *((prompt, piece) for piece in range(shared, pieces)))

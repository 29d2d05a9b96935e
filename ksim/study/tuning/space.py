"""The space that a tuning searches: for each key of the scenario, the values that it may take."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Protocol

from attrs import frozen

from ksim.foundation.errors import ConfigError
from ksim.foundation.units import quantity
from ksim.simulation.scenario import setting
from ksim.simulation.scenario_tables import pieces
from ksim.study.grid import Settings, value_text

FLAG = "--space"
#: A step to a neighbour in a wide range: the range over so many, or by this factor where logarithms count.
_STRIDES, _FACTOR = 20, 1.25
#: What a sampler proposes: a number, or the text of a choice, for each key.
Proposal = Mapping[str, Any]


class Dimension(Protocol):
    """A key of the scenario and the values that it may take."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int | None:
        """How many values there are; None for real numbers."""
        ...

    def distribution(self) -> Any:
        """Optuna's distribution of what it proposes for this key."""
        ...

    def setting(self, proposed: Any) -> Any:
        """The scenario's value for what Optuna proposed."""
        ...

    def at(self, share: float) -> Any:
        """The proposal at this *share* of the way, 0 <= share < 1, from the first value to the last."""
        ...

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        """The proposals next to *proposed*; choices without an order are all next to each other."""
        ...

    def proposals(self) -> Sequence[Any]:
        """All that can be proposed; nothing for real numbers."""
        ...


@frozen
class Listed:
    """Values that are listed.  A sampler proposes the place of a value where they are *ordered*, else its text."""

    key: str
    values: tuple[Any, ...]
    ordered: bool

    @property
    def size(self) -> int:
        return len(self.values)

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return IntDistribution(0, len(self.values) - 1) if self.ordered else CategoricalDistribution(self.proposals())

    def setting(self, proposed: Any) -> Any:
        return self.values[self.proposals().index(proposed)]

    def at(self, share: float) -> Any:
        return self.proposals()[int(share * self.size)]

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        return [other for other in self.proposals()
                if (abs(other - proposed) == 1 if self.ordered else other != proposed)]

    def proposals(self) -> Sequence[Any]:
        return range(self.size) if self.ordered else [*map(value_text, self.values)]


@frozen
class Whole:
    """Whole numbers from `low` to `high`, `step` apart, or spread by their logarithm."""

    key: str
    low: int
    high: int
    log: bool = False
    step: int = 1

    @property
    def size(self) -> int:
        return len(self.proposals())

    def distribution(self) -> Any:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.proposals()[-1], log=self.log, step=self.step)

    def setting(self, proposed: Any) -> int:
        return int(proposed)

    def at(self, share: float) -> int:
        if self.log:
            return min(self.high, int(self.low * ((self.high + 1) / self.low) ** share))
        return self.proposals()[int(share * self.size)]

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        stride = self.step * max(1, self.size // _STRIDES)
        far = [round(proposed / _FACTOR), round(proposed * _FACTOR)] if self.log else [proposed - stride,
                                                                                         proposed + stride]
        return [other for other in dict.fromkeys((*far, proposed - self.step, proposed + self.step))
                if other in self.proposals() and other != proposed]

    def proposals(self) -> range:
        return range(self.low, self.high + 1, self.step)


@frozen
class Real:
    """Real numbers from `low` to `high`, or spread by their logarithm."""

    key: str
    low: float
    high: float
    log: bool = False
    size: None = None

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log)

    def setting(self, proposed: Any) -> float:
        return float(proposed)

    def at(self, share: float) -> float:
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        stride = (self.high - self.low) / _STRIDES
        others = [proposed / _FACTOR, proposed * _FACTOR] if self.log else [proposed - stride, proposed + stride]
        return [other for other in others if self.low <= other <= self.high]

    def proposals(self) -> Sequence[Any]:
        return ()


@frozen
class Space:
    """All dimensions together."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Space":
        """The space of texts such as ``KEY=1,2,4`` or ``KEY=low:high[:log]``; raises ConfigError."""
        return cls.of([dimension(text) for text in texts])

    @classmethod
    def of(cls, dimensions: Sequence[Dimension]) -> "Space":
        """The space of these *dimensions*; raises ConfigError where there is none, or a key comes twice."""
        keys = [each.key for each in dimensions]
        if not keys:
            raise ConfigError(FLAG, "names no key to search; give one such as serve.max_num_seqs=8,16,32")
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ConfigError(FLAG, f"{twice[0]} comes twice; name all its values at once")
        return cls(tuple(dimensions))

    @property
    def size(self) -> int | None:
        """How many points there are; None where a dimension has real numbers."""
        sizes = [each.size for each in self.dimensions]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def distributions(self) -> dict[str, Any]:
        """Optuna's distributions by key."""
        return {each.key: each.distribution() for each in self.dimensions}

    def settings(self, proposal: Proposal) -> Settings:
        """The scenario's settings for a *proposal*."""
        return {each.key: each.setting(proposal[each.key]) for each in self.dimensions}

    def at(self, shares: Sequence[float]) -> Proposal:
        """The proposal at these *shares* of the way along each dimension."""
        return {each.key: each.at(share) for each, share in zip(self.dimensions, shares, strict=True)}

    def neighbours(self, proposal: Proposal) -> list[Proposal]:
        """The proposals that differ from *proposal* by one step in one dimension."""
        return [{**proposal, each.key: other} for each in self.dimensions
                for other in each.neighbours(proposal[each.key])]

    def proposals(self) -> Iterator[Proposal]:
        """All proposals of a space whose `size` is known, the last dimension varying fastest."""
        keys = [each.key for each in self.dimensions]
        return (dict(zip(keys, values, strict=True))
                for values in product(*(each.proposals() for each in self.dimensions)))


def dimension(text: str) -> Dimension:
    """Parse ``KEY=V,V``, ``KEY=low:high``, ``KEY=low:high:log`` or ``KEY=low:high:step``; raises ConfigError."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not key or not equals or not values:
        raise ConfigError(FLAG, f"expected KEY=VALUE,VALUE or KEY=LOW:HIGH[:log], not {text!r}")
    ends = values.split(":")
    numbers = [_number(end) for end in ends[:2]]
    if 2 <= len(ends) <= 3 and None not in numbers:
        return _range(key, values, [number for number in numbers if number is not None], ends[2:])
    texts = [piece.strip() for piece in pieces(FLAG, key, values)]
    if not all(texts):
        raise ConfigError(FLAG, f"{key}: expected values with commas between, not {values!r}")
    return listed(key, [setting(f"{key}={piece}")[1] for piece in texts])


def listed(key: str, values: Sequence[Any]) -> Listed:
    """A dimension of listed *values*; raises ConfigError where there is none, or one comes twice."""
    texts = [*map(value_text, values)]
    if not texts:
        raise ConfigError(FLAG, f"{key}: there is no value to try")
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise ConfigError(FLAG, f"{key}: {twice[0]} comes twice")
    amounts = [_amount(value) for value in values]
    known = [amount for amount in amounts if amount is not None]
    ordered = len(known) == len(values) and (known == sorted(known) or known == sorted(known, reverse=True))
    return Listed(key, tuple(values), ordered)


def _range(key: str, text: str, ends: Sequence[int | float], more: Sequence[str]) -> Dimension:
    low, high = ends
    log, step = "log" in more, next((_number(word) for word in more if word != "log"), 1)
    if step is None or step <= 0:
        raise ConfigError(FLAG, f"{key}: expected low:high, low:high:log or low:high:step, not {text!r}")
    if low > high:
        raise ConfigError(FLAG, f"{key}: the range {text} is empty; did you mean {high:g}:{low:g}?")
    if log and low <= 0:
        raise ConfigError(FLAG, f"{key}: a logarithm needs a range above 0, and {text} begins at {low:g}")
    whole = all(isinstance(number, int) for number in (*ends, step))
    if whole:
        return Whole(key, int(low), int(high), log, int(step))
    if not more or log:
        return Real(key, float(low), float(high), log)
    count = int((high - low) / step + 1e-9) + 1
    return Listed(key, tuple(round(low + step * place, 12) for place in range(count)), ordered=True)


def _number(text: str) -> int | float | None:
    """The finite number that *text* is; whole where it is written so."""
    for kind in (int, float):
        try:
            value: int | float = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else None
    return None


def _amount(value: Any) -> float | None:
    """How much *value* is, if it is a number or a quantity with a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(quantity(value))
    except ValueError:
        return None

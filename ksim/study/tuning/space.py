"""The space that a tuning searches: for each key of the scenario, the values that it may take."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from attrs import frozen

from ksim.foundation.errors import ConfigError
from ksim.foundation.units import quantity
from ksim.study.grid import Range, Settings, SettingValues, check_keys, parse, value_text

FLAG = "--space"
#: A step to a neighbour in a wide range: the range over so many, or by this factor where logarithms count.
_STRIDES, _FACTOR = 20, 1.25
#: What a sampler proposes: a number, or the text of a choice, for each key.
Proposal = Mapping[str, Any]


@frozen
class Listed:
    """A key whose values are listed.  A sampler proposes the place of a value where they are *ordered*, else its text.
    """

    key: str
    values: tuple[Any, ...]
    ordered: bool

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.values)

    def distribution(self) -> Any:
        """Optuna's distribution of what it proposes for this key."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return IntDistribution(0, len(self.values) - 1) if self.ordered else CategoricalDistribution(self.proposals())

    def setting(self, proposed: Any) -> Any:
        """The scenario's value for what Optuna proposed."""
        return self.values[self.proposals().index(proposed)]

    def proposed(self, setting: Any) -> Any:
        """What was proposed for a *setting*."""
        return self.proposals()[[*map(value_text, self.values)].index(value_text(setting))]

    def at(self, share: float) -> Any:
        """The proposal at this *share* of the way, 0 <= share < 1, from the first value to the last."""
        return self.proposals()[int(share * self.size)]

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        """The proposals next to *proposed*; choices without an order are all next to each other."""
        return [other for other in self.proposals()
                if (abs(other - proposed) == 1 if self.ordered else other != proposed)]

    def proposals(self) -> Sequence[Any]:
        """All that can be proposed; nothing for real numbers."""
        return range(self.size) if self.ordered else [*map(value_text, self.values)]


@frozen
class Between:
    """A key whose values are numbers of a range; its methods are those of `Listed`.

    Numbers have the unit of the range, if there is one.  Whole numbers are counted; of real ones, `size` is None.
    """

    range: Range

    @property
    def key(self) -> str:
        return self.range.key

    @property
    def size(self) -> int | None:
        return len(self.proposals()) if self.range.whole else None

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high, log = self.range.low, self.range.high, self.range.log
        return IntDistribution(int(low), int(high), log) if self.range.whole else FloatDistribution(low, high, log)

    def setting(self, proposed: Any) -> Any:
        return self.range.shown(proposed)

    def proposed(self, setting: Any) -> Any:
        number = setting.removesuffix(self.range.unit) if isinstance(setting, str) else setting
        return int(number) if self.range.whole else float(number)

    def at(self, share: float) -> Any:
        return self.range.number(share)

    def neighbours(self, proposed: Any) -> Sequence[Any]:
        whole, low, high = self.range.whole, self.range.low, self.range.high
        stride = (high - low) / _STRIDES
        others = [proposed / _FACTOR, proposed * _FACTOR] if self.range.log else [proposed - stride, proposed + stride]
        if whole:
            others = [*map(round, others), proposed - 1, proposed + 1]
        return [other for other in dict.fromkeys(others) if low <= other <= high and other != proposed]

    def proposals(self) -> Sequence[Any]:
        return range(int(self.range.low), int(self.range.high) + 1) if self.range.whole else ()


#: A key of the scenario, and the values that it may take.
Dimension = Listed | Between


@frozen
class Space:
    """All dimensions together."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Space":
        """The space of texts such as ``KEY=1,2,4`` or ``KEY=low:high[:log]``; raises ConfigError."""
        return cls.of(parse(text, FLAG) for text in texts)

    @classmethod
    def of(cls, axes: Iterable[SettingValues | Range]) -> "Space":
        """The space of these *axes*; raises ConfigError where there is none, or a key comes twice."""
        dimensions = tuple(Between(axis) if isinstance(axis, Range) else listed(axis) for axis in axes)
        if not dimensions:
            raise ConfigError(FLAG, "names no key to search; give one such as serve.max_num_seqs=8,16,32")
        check_keys([dimension.key for dimension in dimensions], FLAG)
        return cls(dimensions)

    @property
    def size(self) -> int | None:
        """The number of points; None if a dimension has real numbers."""
        sizes = [each.size for each in self.dimensions]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def distributions(self) -> dict[str, Any]:
        """Optuna's distributions by key."""
        return {each.key: each.distribution() for each in self.dimensions}

    def settings(self, proposal: Proposal) -> Settings:
        """The scenario's settings for a *proposal*."""
        return {axis.key: axis.setting(proposal[axis.key]) for axis in self.dimensions}

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


def listed(axis: SettingValues) -> Listed:
    """The dimension of the values of *axis*; raises ConfigError where there is none, or one comes twice."""
    texts = [*map(value_text, axis.values)]
    if len(set(texts)) < max(1, len(texts)):
        raise ConfigError(FLAG, f"{axis.key}: expected different values, not {', '.join(texts) or 'none'}")
    amounts = [amount for amount in map(_amount, axis.values) if amount is not None]
    return Listed(axis.key, axis.values,
                  ordered=len(amounts) == len(texts) and amounts in (sorted(amounts), sorted(amounts, reverse=True)))


def _amount(value: Any) -> float | None:
    """The amount of *value*, if it is a number or a quantity with a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return quantity(value)
    except ValueError:
        return None

"""The ranking of candidates by estimates: how many replicas each needs for a rate, and what that costs."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Protocol

import numpy as np
from attrs import evolve, field, frozen

from ksim.foundation.units import HOUR
from ksim.results.steps import Bools, Floats, Ints
from ksim.study.capacity.targets import Target
from ksim.study.grid import Settings
from ksim.study.planning.candidates import EngineFamily
from ksim.study.planning.estimate import Station, Steady, station
from ksim.study.planning.fleets import Engines, gpus_of, name_of
from ksim.study.planning.step_prices import LoadSample, StepPrices
from ksim.study.speculation import accepted_length, accepted_spread

#: The most replicas, and from which ratio on numbers of them are halved by their logarithms.
_MOST, _NEAR = 512, 3


@frozen(eq=False)
class Priced:
    """A family with the prices of its steps for a `load`: its variants are the rows of `station`."""

    family: EngineFamily
    station: Station = field(repr=False)

    @classmethod
    def of(cls, family: EngineFamily, load: LoadSample) -> "Priced":
        """Price the steps of *family*; raises KsimError."""
        config = family.variants[0].serve.speculative_config
        if config is not None:
            load = evolve(load, accepted=accepted_length(config), uneven=accepted_spread(config))
        return cls(family, station(family.variants, StepPrices.of(family.variants[0], load), load))

    @property
    def most(self) -> int:
        """How many replicas there can be."""
        most = self.family.kind.most
        return _MOST if most is None else min(_MOST, most // self.family.gpus)


@frozen(eq=False)
class EngineRows:
    """Engines of several families as rows of one `station`, so that numpy works on all of them at a time.

    A row is a variant of `families`, by its number in `variants`, of which there can be so many replicas (`most`).
    """

    station: Station
    families: tuple[EngineFamily, ...]
    variants: Ints
    most: Ints

    @classmethod
    def of(cls, priced: Sequence[Priced], role: str = "both") -> Iterator["EngineRows"]:
        """The engines of *priced* that there can be in pools of this *role*; where they prefill or decode alone, those
        of the first variants."""
        alike = dict[Hashable, list[tuple[Priced, Station]]]()
        for one in priced:
            station = one.station.of_role(role)
            if one.most:
                alike.setdefault(station.alike, []).append(
                    (one, station if role == "both" else station.rows(np.zeros(1, int))))
        for group in alike.values():
            counts = [len(station.budget) for _, station in group]
            yield cls(Station.joined([station for _, station in group]),
                      tuple(one.family for (one, _), count in zip(group, counts, strict=True) for _ in range(count)),
                      np.concatenate([*map(np.arange, counts)]), np.repeat([one.most for one, _ in group], counts))

    def steady(self, which: Ints, replicas: Ints, rate: float) -> Steady:
        """The state of rows *which*, so many replicas of which share the *rate*."""
        return self.station.rows(which).steady(rate / replicas, replicas.astype(np.float64))


class EstimatedState(Protocol):
    """What an estimate says of several variants or numbers of replicas: `Steady` or `SteadyApart`."""

    @property
    def full(self) -> Bools: ...

    def value(self, target: Target) -> Floats: ...

    @property
    def e2el(self) -> Floats: ...

    def rows(self, which: Ints) -> "EstimatedState": ...


def kept(state: EstimatedState, targets: Sequence[Target]) -> Bools:
    """Which rows of *state* keep all *targets*."""
    keeps = ~state.full
    if (open_ := np.flatnonzero(keeps)).size:
        found = state.rows(open_)
        for target in targets:
            keeps[open_] &= found.value(target) <= target.limit
    return keeps


#: Whether variants, by number, carry the load with so many replicas each.
Carries = Callable[[Ints, Ints], Bools]


def fewest(engines: EngineRows, rate: float, targets: Sequence[Target]) -> Ints:
    """The fewest replicas of each row of *engines* that keep *targets* at *rate*; 0 where no number does."""
    def carries(which: Ints, replicas: Ints) -> Bools:
        return kept(engines.steady(which, replicas, rate), targets)

    return fewest_of(carries, engines.most)


def fewest_of(carries: Carries, most: Ints) -> Ints:
    """The fewest replicas of each variant that it *carries*, all at a time; 0 where the *most* of it do not."""
    high = np.array(most)
    low = np.zeros_like(high)
    high[~carries(np.arange(len(high)), high)] = 0
    while (open_ := np.flatnonzero(high - low > 1)).size:
        middle = np.where(high[open_] > _NEAR * np.maximum(low[open_], 1),
                          np.sqrt(np.maximum(low[open_], 1) * high[open_]).astype(int), (low[open_] + high[open_]) // 2)
        enough = carries(open_, middle)
        high[open_] = np.where(enough, middle, high[open_])
        low[open_] = np.where(enough, low[open_], middle)
    return high


@frozen(eq=False)
class Option:
    """A candidate with as many replicas as its estimate says that the rate needs.

    `settings` make its scenario of the one that was asked for, and so many `replicas` of that carry the rate.  `values`
    are the estimated statistics of targets, in seconds; `watts` are those of all GPUs.  A request takes so many
    `seconds` on the mean.  `families` are those of its engines, of each pool in turn where it has pools, and `loads`
    the load of each.
    """

    settings: Settings = field(repr=False)
    replicas: int
    families: tuple[EngineFamily, ...] = field(repr=False)
    values: Mapping[Target, float]
    watts: float
    costs: Mapping[str, float]
    seconds: float
    loads: tuple[LoadSample, ...] = field(repr=False)

    @cached_property
    def name(self) -> str:
        """What it is called; `name_of`."""
        return name_of(self.settings)

    @property
    def gpu(self) -> str:
        """The kinds of its GPUs."""
        return " + ".join(dict.fromkeys(family.kind.name for family in self.families))

    @property
    def engines(self) -> Engines:
        """How many replicas there are of each of its `families`."""
        pools = self.settings.get("pools")
        counts = [pool["replicas"] for pool in pools.values()] if pools else [self.replicas]
        return tuple(zip(self.families, counts, strict=True))

    @property
    def gpus(self) -> int:
        return gpus_of(self.engines)

    @property
    def strain(self) -> float:
        """The worst target over its limit."""
        return max(value / target.limit for target, value in self.values.items())

    def order(self, objectives: Sequence[str]) -> tuple[float, ...]:
        """A key to sort by: the product of *objectives*, then engines that are not apart, then joules."""
        return (round(cost_of(self.costs, objectives), 6), float("pools" in self.settings), self.costs["joules"],
                self.strain)


@frozen
class PlanQuestion:
    """What is asked: the `load`, its `rate` in requests/s, or sessions/s, and the `targets` to keep."""

    load: LoadSample
    rate: float
    targets: tuple[Target, ...]

    @property
    def tokens(self) -> float:
        """Output tokens/s."""
        return self.requests * float(self.load.outputs.mean())

    @property
    def requests(self) -> float:
        """Requests/s, of sessions each turn."""
        return self.rate * self.load.turns


@frozen(eq=False)
class FoundOptions:
    """What the estimates of some options say: a row for each, with the `watts` of a GPU of each of its engines."""

    question: PlanQuestion
    values: Mapping[Target, Floats]
    seconds: Floats
    watts: Floats
    loads: tuple[LoadSample, ...]

    @classmethod
    def of(cls, question: PlanQuestion, state: EstimatedState, watts: Floats, loads: tuple[LoadSample, ...]
           ) -> "FoundOptions":
        values = {target: state.value(target) for target in question.targets}
        return cls(question, values, state.e2el.mean(axis=1), watts, loads)

    def option(self, row: int, settings: Settings, engines: Engines, replicas: int = 1) -> Option:
        """The option of a *row*, with so many replicas of each family of *engines*."""
        watts = sum(count * family.gpus * float(each) for (family, count), each in zip(
            engines, self.watts[row], strict=True))
        return Option(
            settings, replicas, tuple(family for family, _ in engines),
            values={target: float(value[row]) for target, value in self.values.items()}, watts=watts,
            costs=costs_of(self.question, engines, watts), seconds=float(self.seconds[row]), loads=self.loads)


def cost_of(costs: Mapping[str, float], objectives: Sequence[str]) -> float:
    """The product of *costs* that are to be minimised: of several *objectives*, a per cent of each counts alike."""
    return prod(costs[name] for name in objectives)


def dominates(costs: Mapping[str, float], others: Mapping[str, float], objectives: Sequence[str]) -> bool:
    """Whether *costs* are nowhere above *others*, and somewhere below."""
    pairs = [(costs[name], others[name]) for name in objectives]
    return (all(one <= other * (1 + EQUAL) for one, other in pairs)
            and any(one < other * (1 - EQUAL) for one, other in pairs))


#: Costs that differ by less are equal.
EQUAL = 1e-6


def costs_of(question: PlanQuestion, engines: Engines, watts: float) -> dict[str, float]:
    """What *engines* cost that draw so many *watts*, by objective; dollars and carbon where their rates are stated."""
    rates = engines[0][0].rates
    costs = {"gpus": float(gpus_of(engines)), "joules": watts / question.tokens}
    beside = sum(count * family.gpus * family.rates.beside for family, count in engines)
    facility = (watts + beside) * rates.pue
    if rates.gpu_dollars is not None:
        rented = sum(count * family.gpus * (family.rates.gpu_dollars or 0.0) for family, count in engines)
        costs["usd"] = HOUR * (rented + facility * (rates.dollars or 0.0))
    if rates.grams is not None:
        costs["carbon"] = HOUR * facility * rates.grams
    return costs

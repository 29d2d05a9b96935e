"""Fleets of engines on two kinds of GPUs, each of which carries its share of the requests.

Their router gives the next request to the engine with the fewest under way.  So all engines have as many under way as
the one that first reaches what it carries within the targets, and faster ones serve more in the meantime.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import ceil, inf

import numpy as np
from attrs import evolve, field, frozen

from ksim.results.steps import Floats, Ints
from ksim.study.planning.candidates import EngineFamily, mixes
from ksim.study.planning.fleets import Engines, gpus_of, mixed_settings
from ksim.study.planning.ranking import EngineRows, FoundOptions, Option, PlanQuestion, kept

#: Halvings of a rate, and the rates up to what an engine carries at which its requests under way are known.
_HALVINGS, _RATES = 12, np.linspace(0.05, 1.0, 12)


@frozen(eq=False)
class Carrier:
    """The variant of a family that carries the most: up to so many requests/s (`most`) within the targets.

    At each of some `rates`, so many requests are `under_way`.  It is the `row` of `engines`.
    """

    family: EngineFamily
    engines: EngineRows
    row: int
    rates: Floats = field(repr=False)
    under_way: Floats = field(repr=False)

    @property
    def most(self) -> float:
        return float(self.rates[-1])

    def rate(self, under_way: float) -> float:
        """Requests/s with so many under way."""
        return float(np.interp(under_way, [0.0, *self.under_way], [0.0, *self.rates]))


def mixed(question: PlanQuestion, groups: Sequence[EngineRows]) -> Iterator[Option]:
    """For each two families of *groups* that may serve side by side, the fleet that costs the least, where that is less
    than either alone."""
    if len({family.kind for engines in groups for family in engines.families}) < 2:
        return
    carriers = [carrier for engines in groups for carrier in _carriers(question, engines)]
    for one, other in combinations(carriers, 2):
        if mixes(one.family, other.family) and (counts := _counts(question.requests, one, other)) is not None:
            yield _option(question, (one, other), counts)


def _carriers(question: PlanQuestion, engines: EngineRows) -> Iterator[Carrier]:
    """Of each family of *engines*, the variant that carries the most, if any carries something."""
    rows = np.arange(len(engines.families))
    low, high = np.zeros(len(rows)), np.full(len(rows), question.requests)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = kept(engines.station.rows(rows).steady(middle), question.targets)
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    best = dict[int, int]()
    for row in rows[low > 0]:
        known = best.setdefault(id(engines.families[row]), int(row))
        if low[row] > low[known]:
            best[id(engines.families[row])] = int(row)
    for row in best.values():
        rates = low[row] * _RATES
        state = engines.station.rows(np.full(len(rates), row)).steady(rates)
        family, variant = engines.families[row], int(engines.variants[row])
        alone = evolve(family, shared={**family.shared, **family.own[variant]}, own=({},),
                       variants=(family.variants[variant],))
        yield Carrier(alone, engines, row, rates, np.maximum.accumulate(rates * state.e2el.mean(axis=1)))


def _counts(rate: float, one: Carrier, other: Carrier) -> tuple[int, int] | None:
    """How many of each cost the least; None where one of them alone costs as little, or there are too few."""
    level = min(one.under_way[-1], other.under_way[-1])
    first, second = one.rate(level), other.rate(level)
    found = [(number, ceil((rate - number * first) / second - 1e-9)) for number in range(1, ceil(rate / first))]
    fits = [counts for counts in found if _there(one, counts[0]) and _there(other, counts[1])]
    best = min(fits, key=lambda counts: _price(((one.family, counts[0]), (other.family, counts[1]))), default=None)
    alone = [_price(((carrier.family, count),)) for carrier in (one, other)
             if _there(carrier, count := ceil(rate / carrier.most))]
    if best is None or _price(((one.family, best[0]), (other.family, best[1]))) >= min(alone, default=inf):
        return None
    return best


def _there(carrier: Carrier, count: int) -> bool:
    return count <= int(carrier.engines.most[carrier.row])


def _price(engines: Engines) -> float:
    """The dollars an hour of the GPUs of *engines*, or their number where they have no price."""
    prices = [family.rates.gpu_dollars for family, _ in engines]
    if None in prices:
        return float(gpus_of(engines))
    return sum(count * family.gpus * (family.rates.gpu_dollars or 0.0) for family, count in engines)


def _option(question: PlanQuestion, carriers: tuple[Carrier, Carrier], counts: tuple[int, int]) -> Option:
    """The fleet with so many replicas of each of *carriers*; a percentile is taken to be that of the slower of both."""
    one, other = carriers
    levels = np.linspace(0.0, min(one.under_way[-1], other.under_way[-1]), 200)
    served = [counts[0] * one.rate(level) + counts[1] * other.rate(level) for level in levels]
    level = float(np.interp(question.requests, served, levels))
    states = [carrier.engines.station.rows(_only(carrier.row)).steady(np.array([carrier.rate(level)]))
              for carrier in carriers]
    shares = np.array([count * carrier.rate(level) for count, carrier in zip(counts, carriers, strict=True)])
    each = {target: [float(state.value(target)[0]) for state in states] for target in question.targets}
    values = {target: np.array([np.average(both, weights=shares) if target.share is None else max(both)])
              for target, both in each.items()}
    seconds = float(np.average([state.e2el.mean() for state in states], weights=shares))
    found = FoundOptions(question, values, np.array([seconds]), np.array([[float(state.watts[0]) for state in states]]),
                         tuple(carrier.engines.station.load for carrier in carriers))
    engines = tuple((carrier.family, count) for carrier, count in zip(carriers, counts, strict=True))
    return found.option(0, mixed_settings(engines), engines)


def _only(row: int) -> Ints:
    return np.array([row])

"""The perfect autoscaler: the sizes over time that cost least where the load to come is known and the SLO is kept.

Time is cut into slots, and each pool has a size in each.  Runs with pools of one size all along say how many of the
requests that arrive in a slot miss their targets then.  Sizes that cost least for a price on each miss follow by
dynamic programming, start-ups included; the lowest price whose sizes keep the SLO is found by simulating them.  Then
sizes are lowered slot by slot, many at once while that goes well, as long as a simulation keeps the SLO.  Every
schedule that is offered has thus been simulated, with its start-ups and drains.  It is the cheapest that was found,
which is not proven to be the cheapest that there is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ksim.flow.events import Scaled
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, KsimError
from ksim.foundation.units import HOUR
from ksim.results.metrics import good
from ksim.scenario.scenario import Scenario
from ksim.scenario.startup import engine_load, startup_of
from ksim.simulation.fleet import Fleet
from ksim.study.experiment import play
from ksim.study.workers import RunWorkers, in_order
from ksim.views.result import Result

__all__ = ["MOST_PRICED", "ScaledRun", "Search", "Sizes", "levels_of", "scaled_pools"]

#: The replicas of each pool in each slot.
Sizes = Mapping[str, tuple[int, ...]]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Sizes of pools that are simulated all along: steps of a third or less.
_LEVELS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768,
           1024)
#: Prices of a miss that are looked at, in seconds of a replica.
_PRICES = np.geomspace(1e-3, 1e6, 60)
#: The most runs in which the lowest price is found: as many as halve so many prices, and that of the most replicas.
MOST_PRICED = 7


@frozen
class ScaledRun:
    """What a run cost, and how far it kept the SLO: the `share` of requests within their targets.

    `arrivals` are their times, and `met` says which kept theirs; `asked` has the sizes that were asked for over time.
    """

    summary: Mapping[str, object]
    arrivals: Floats
    met: NDArray[np.bool_]
    asked: Mapping[str, tuple[tuple[float, int], ...]]

    @classmethod
    def of(cls, result: Result, pools: Iterable[str]) -> "ScaledRun":
        asked: dict[str, list[tuple[float, int]]] = {name: [] for name in pools}
        for scaled in result.log.of(Scaled):
            asked[scaled.pool].append((scaled.time, scaled.replicas))
        return cls(result.summary, result.history.requests.arrival, good(result.history, result.limits),
                   {name: tuple(steps) for name, steps in asked.items()})

    @property
    def share(self) -> float:
        return float(self.met.mean()) if len(self.met) else 1.0

    @property
    def cost(self) -> float:
        """Dollars for GPUs, or GPU-hours where they have no price."""
        dollars = self.summary["gpu_dollars"]
        return float(self.summary["allocated_gpu_seconds"]) / HOUR if dollars is None else float(dollars)  # type: ignore[arg-type]


def run(pools: Sequence[str], scenario: Scenario) -> ScaledRun:
    """Simulate *scenario*, whose *pools* are scaled."""
    return ScaledRun.of(play(scenario), pools)


def scaled_pools(scenario: Scenario) -> list[str]:
    """The pools of *scenario* that have an autoscaler; raises ConfigError where none has."""
    if not (names := [name for name in scenario.pools if scenario.autoscaler_of(name)]):
        raise ConfigError("autoscaler", "is not set, for the scenario or a pool; set it, and max_replicas of the pools"
                                        " that it may scale")
    return names


def levels_of(most: int) -> list[int]:
    """The sizes up to *most* that are simulated all along."""
    return [*(level for level in _LEVELS if level < most), most]


def with_sizes(scenario: Scenario, asked: Mapping[str, Sequence[tuple[float, int]]], begin: Mapping[str, int],
               interval: float) -> Scenario:
    """*scenario* whose pools have the sizes *asked* for, looked at each *interval*, `begin` with theirs, and keep none
    warm."""
    steps = {name: [[time, size] for time, size in asked[name]] or [[0.0, begin[name]]] for name in asked}
    pools = {name: evolve(pool, autoscaler=None, replicas=begin[name], max_replicas=pool.places, warm_pool=None)
             if name in begin
             else pool for name, pool in scenario.pools.items()}
    return evolve(scenario, pools=pools, autoscaler=Choice("perfect", {"sizes": steps, "interval": f"{interval:g} s"}))


@define(eq=False)
class Search:
    """The search for sizes with which `share` of the requests of `scenario` keep their targets.

    The time up to the last arrival has so many `slots`, in each of which a pool has `least` replicas at least.  `cost`
    is that of a replica of each pool for a second, in whatever unit, and `lead` the seconds that it takes to start.
    `told` hears of each run that ends.
    """

    scenario: Scenario
    share: float
    slots: int
    least: int
    cost: Mapping[str, float]
    lead: Mapping[str, float]
    workers: RunWorkers
    told: Callable[[], object] = field(kw_only=True)
    #: Seconds of a slot.
    length: float = field(default=1.0, init=False)

    @classmethod
    def of(cls, scenario: Scenario, share: float, slots: int, least: int, workers: RunWorkers,
           told: Callable[[], object]) -> "Search":
        """The search for the pools of *scenario* that have an autoscaler."""
        fleet, names = Fleet.of(scenario), scaled_pools(scenario)
        pools = {pool.name: pool.deployment for pool in fleet.pools if pool.name in names}
        wide = {name: one.serve.gpus * one.serve.data_parallel_size for name, one in pools.items()}
        startup = startup_of(scenario.startup)
        lead = {name: sum(part.seconds for part in startup.parts(engine_load(one))) for name, one in pools.items()}
        priced = {name: wide[name] * (one.rates.gpu_dollars or 1.0) for name, one in pools.items()}
        return cls(scenario, share, slots, least, priced, lead, workers, told=told)

    @property
    def pools(self) -> list[str]:
        return list(self.cost)

    def most(self) -> dict[str, int]:
        """The most replicas of each pool."""
        return {name: self.scenario.pools[name].places for name in self.pools}

    def simulate(self, runs: Sequence[Sizes]) -> list[ScaledRun]:
        """Runs with pools of these sizes."""
        return self.play([self.scheduled(sizes) for sizes in runs])

    def play(self, scenarios: Sequence[Scenario]) -> list[ScaledRun]:
        """Runs of *scenarios*, whose pools are those that are searched."""
        def results() -> Iterator[tuple[int, ScaledRun]]:
            for ended in self.workers.run(partial(run, self.pools), scenarios):
                self.told()
                yield ended

        return in_order(results(), len(scenarios))

    def scheduled(self, sizes: Sizes) -> Scenario:
        """The scenario with *sizes*, each replica asked for as long before its slot as it takes to start."""
        interval = min(1.0, self.length / 4)
        asked = {name: self._asked(each, self.lead[name], interval) for name, each in sizes.items()}
        return with_sizes(self.scenario, asked, {name: steps[0][1] for name, steps in asked.items()}, interval)

    def _asked(self, sizes: Sequence[int], lead: float, grain: float) -> list[tuple[float, int]]:
        """What to ask for, and when: the largest size until those who are asked for now would be ready."""
        begins = [slot * self.length for slot in range(len(sizes))]
        moments = sorted({0.0, *begins, *(max(0.0, (begin - lead) // grain * grain) for begin in begins)})
        asked = [(moment, max(size for begin, size in zip(begins, sizes, strict=True)
                              if begin + self.length > moment and (begin <= moment + lead + grain)))
                 for moment in moments if moment < begins[-1] + self.length]
        return [asked[0], *(after for before, after in pairwise(asked) if after[1] != before[1])]

    # Where to begin.

    def find(self, others: Sequence[ScaledRun], trials: int) -> tuple[Scenario, ScaledRun]:
        """The cheapest scenario that was found, and its run; *others* are runs of other autoscalers, one at least.

        It costs no more than any of them that keeps the SLO.  At most so many *trials* lower sizes.  Raises KsimError
        where the SLO is missed with all replicas all the time.
        """
        self.length = max(float(others[0].arrivals.max(initial=0.0)), 1e-3) / self.slots
        sizes, kept = self._priced(*self._misses())
        sizes, kept = self._lowered(sizes, kept, trials)
        found = self.scheduled(sizes), kept
        cheaper = [other for other in others if other.share >= self.share and other.cost < kept.cost]
        return min([found, *(self._again(other) for other in cheaper)], key=lambda each: each[1].cost)

    def _again(self, other: ScaledRun) -> tuple[Scenario, ScaledRun]:
        """The scenario that asks for what *other* asked for."""
        begin = {name: self.scenario.pools[name].replicas for name in self.pools}
        again = with_sizes(self.scenario, other.asked, begin, 1.0)
        return again, other

    def _misses(self) -> tuple[dict[str, Ints], dict[str, NDArray[np.float64]]]:
        """The sizes of each pool that were tried all along, and the misses of each in each slot: (sizes, slots)."""
        most = self.most()
        levels = {name: np.array([0, *levels_of(most[name])]) for name in self.pools}
        tried = [most, *({**most, name: int(level)} for name in self.pools for level in levels[name][1:-1])]
        kept = self.simulate([{name: (size,) * self.slots for name, size in each.items()} for each in tried])
        if kept[0].share < self.share:
            raise KsimError(f"with all replicas all the time, {kept[0].share:.1%} of the requests keep their targets,"
                            f" and {self.share:.1%} should; raise max_replicas, or loosen slo")
        of = {tuple(each.values()): one for each, one in zip(tried, kept, strict=True)}
        everyone = self._by_slot(kept[0].arrivals)
        return levels, {name: np.array([everyone, *(
            self._by_slot(one.arrivals[~one.met]) for level in levels[name][1:]
            for one in [of[tuple({**most, name: int(level)}.values())]])]) for name in self.pools}

    def _by_slot(self, times: Floats) -> Floats:
        """How many of *times* there are in each slot: (slots,)."""
        places = np.minimum((times / self.length).astype(int), self.slots - 1)
        return np.bincount(places, minlength=self.slots).astype(float)

    def _priced(self, levels: Mapping[str, Ints], misses: Mapping[str, Floats]) -> tuple[Sizes, ScaledRun]:
        """The sizes of the lowest price of a miss that keep the SLO, and their run."""
        tried: dict[tuple[tuple[int, ...], ...], Sizes] = {}
        for price in _PRICES:
            sizes = {name: self._cheapest(name, levels[name], misses[name], float(price)) for name in self.pools}
            tried.setdefault(tuple(sizes.values()), sizes)
        ladder = [*tried.values(), {name: (size,) * self.slots for name, size in self.most().items()}]
        low, high, runs = -1, len(ladder) - 1, dict[int, ScaledRun]()
        while high - low > 1 or high not in runs:
            middle = (low + high) // 2 if high - low > 1 else high
            runs[middle] = self.simulate([ladder[middle]])[0]
            if runs[middle].share >= self.share or middle == len(ladder) - 1:
                high = middle
            else:
                low = middle
        return ladder[high], runs[high]

    def _cheapest(self, name: str, levels: Ints, misses: Floats, price: float) -> tuple[int, ...]:
        """The sizes of a pool that cost least, with their start-ups, at this *price* of a miss."""
        hold = levels * self.length * self.cost[name]
        more = np.maximum(levels[None, :] - levels[:, None], 0) * min(self.lead[name], self.length * self.slots)
        change = more * self.cost[name]  # (from, to)
        price *= self.cost[name]
        hold = np.repeat(hold[:, None], self.slots, axis=1)
        hold[levels < self.least] = np.inf
        hold[levels == 0, -1] = np.inf  # those that are left then would wait for ever
        best, came = hold[:, 0] + price * misses[:, 0], []
        for slot in range(1, self.slots):
            ways = best[:, None] + change
            came.append(ways.argmin(axis=0))
            best = ways.min(axis=0) + hold[:, slot] + price * misses[:, slot]
        path = [int(best.argmin())]
        for back in reversed(came):
            path.append(int(back[path[-1]]))
        return tuple(int(levels[place]) for place in reversed(path))

    # How to go on.

    def _lowered(self, sizes: Sizes, kept: ScaledRun, trials: int) -> tuple[Sizes, ScaledRun]:
        """*sizes*, lowered by one in as many slots as *trials* found that still keep the SLO, and their run."""
        groups = [(name, tuple(slot for slot in range(self.slots) if size[slot])) for name, size in sizes.items()]
        while groups and trials > 0:
            name, slots = groups.pop(0)
            if not (lower := [slot for slot in slots
                              if sizes[name][slot] > max(self.least, slot == self.slots - 1)]):
                continue
            tried = {**sizes, name: tuple(size - (slot in lower) for slot, size in enumerate(sizes[name]))}
            one, trials = self.simulate([tried])[0], trials - 1
            if one.share >= self.share and one.cost < kept.cost:
                sizes, kept = tried, one
                groups.append((name, tuple(lower)))
            elif len(lower) > 1:
                middle = len(lower) // 2
                groups += [(name, tuple(lower[:middle])), (name, tuple(lower[middle:]))]
        return sizes, kept

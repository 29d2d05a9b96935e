"""The options of families by estimates: engines that serve requests alone, on GPUs of one kind or two, and those that
prefill and decode apart.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attrs import frozen

from ksim.results.steps import Floats, Ints
from ksim.scenario.defaults import Deployment
from ksim.specs.pools import ROLES
from ksim.study.capacity.targets import Target
from ksim.study.planning.candidates import ROUTER, EngineFamily, GpuKind, apart
from ksim.study.planning.estimate import SteadyApart
from ksim.study.planning.fleets import apart_settings, transfer
from ksim.study.planning.mixes import mixed
from ksim.study.planning.ranking import (
    EngineRows,
    EstimatedState,
    FoundOptions,
    Option,
    PlanQuestion,
    Priced,
    fewest,
    fewest_of,
    kept,
)
from ksim.study.planning.step_prices import LoadSample

__all__ = ["EstimatedFleet", "fastest", "options"]

#: Targets that the engine decides which decodes, where another one prefills.
_DECODED = ("tpot", "itl")


def options(question: PlanQuestion, families: Sequence[EngineFamily], loads: Mapping[int, LoadSample] | None = None
            ) -> Iterator[Option]:
    """The options of all *families* that can keep the targets; raises KsimError for steps that cannot be priced.

    *loads* are those of families by their `id`, where these differ.
    """
    priced = [Priced.of(family, (loads or {}).get(id(family), question.load)) for family in families]
    for engines in (groups := [*EngineRows.of(priced)]):
        yield from _whole(question, engines)
    yield from mixed(question, groups)
    single = [one for one in priced if one.family.single]
    after = [target for target in question.targets if target.metric in _DECODED]
    for decode in EngineRows.of(single, "decode"):
        counts = fewest(decode, question.requests, after)
        for prefill in EngineRows.of(single, "prefill"):
            yield from _apart(question, prefill, decode, counts)


def fastest(question: PlanQuestion, families: Sequence[EngineFamily]) -> dict[Target, float]:
    """The least seconds of each target of any of *families*, with one request at a time."""
    rows = EngineRows.of([Priced.of(family, question.load) for family in families])
    states = [engines.station.steady(np.full(len(engines.families), _RARELY)) for engines in rows]
    return {target: min(float(state.value(target).min()) for state in states) for target in question.targets}


@frozen
class EstimatedFleet:
    """Engines of `pools`, each with its role, its deployment and its number, of which there is an estimate: of one pool
    that serves requests alone, or of one that prefills and one that decodes."""

    priced: tuple[Priced, ...]
    roles: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, load: LoadSample, pools: Sequence[tuple[str, Deployment, int]]) -> "EstimatedFleet | None":
        """The fleet of *pools*; None where the estimate knows no such fleet."""
        roles, deployments, counts = zip(*sorted(pools, key=lambda pool: ROLES.index(pool[0])), strict=True)
        if roles not in (("both",), ("prefill", "decode")):
            return None
        return cls(tuple(_priced_alone(load, one) for one in deployments), roles, counts)

    def steady(self, rates: Floats, times: Floats) -> EstimatedState:
        """The state at each of *rates*, in requests/s, of so many *times* the engines."""
        states = []
        for one, role, count in zip(self.priced, self.roles, self.counts, strict=True):
            rows = one.station.of_role(role).rows(np.zeros(len(rates), int))
            states.append(rows.steady(rates / (times * count), times * count))
        if len(states) == 1:
            return states[0]
        start, token = (np.full((len(rates), 1), value) for value in transfer(*(one.family for one in self.priced)))
        filling, decoding = states
        return SteadyApart(filling, decoding, start, token)

    def highest_rate(self, load: LoadSample, targets: Sequence[Target]) -> float:
        """The highest rate, in requests/s or sessions/s, that keeps *targets*; or 0.0."""
        rates = np.geomspace(*_RATES, _TRIED)
        for _ in range(2):
            state = self.steady(rates, np.ones(len(rates)))
            carried = int(np.argmin(np.append(kept(state, targets), False)))
            if not carried or carried == len(rates):
                return float(rates[-1]) / load.turns if carried else 0.0
            found = float(rates[carried - 1])
            rates = np.geomspace(found, rates[carried], _TRIED)
        return found / load.turns

    def fewest(self, question: PlanQuestion) -> tuple[int, dict[Target, float]]:
        """How many times the engines carry the rate within the targets, and the values of these then; 0 where no
        number does."""
        times = np.arange(1.0, _MOST_TIMES + 1)
        state = self.steady(np.full(len(times), question.requests), times)
        first = np.flatnonzero(kept(state, question.targets))[:1]
        if not first.size:
            return 0, {}
        return int(times[first[0]]), {target: float(state.rows(first).value(target)[0]) for target in question.targets}


#: The rates that are tried for the highest one: their ends, and how many at a time; the most times the engines.
_RATES, _TRIED, _MOST_TIMES = (1e-3, 1e4), 96, 512


def _priced_alone(load: LoadSample, deployment: Deployment) -> Priced:
    family = EngineFamily(GpuKind(deployment.gpu.name), {"gpu": deployment.gpu.name}, ({},), (deployment,))
    return Priced.of(family, load)


#: Requests/s that never meet.
_RARELY = 1e-6


def _whole(question: PlanQuestion, engines: EngineRows) -> Iterator[Option]:
    """The *engines* that serve requests alone."""
    counts = fewest(engines, question.requests, question.targets)
    if not (which := np.flatnonzero(counts)).size:
        return
    state = engines.steady(which, counts[which], question.requests)
    found = FoundOptions.of(question, state, state.watts[:, None], (engines.station.load,))
    for place, row in enumerate(which):
        family, replicas = engines.families[row], int(counts[row])
        if _needs_no_router(family, replicas):
            continue
        settings = {**family.shared, **family.own[engines.variants[row]]}
        yield found.option(place, settings, [(family, replicas)], replicas)


def _apart(question: PlanQuestion, prefill: EngineRows, decode: EngineRows, counts: Ints) -> Iterator[Option]:
    """Engines of two families, for each two that may serve apart: so many of *decode* as the targets of tokens need
    (*counts*), and the fewest of *prefill* that keep the others beside them."""
    pairs = [(first, then) for then in np.flatnonzero(counts) for first in range(len(prefill.families))
             if apart(prefill.families[first], decode.families[then])]
    most = [_room(prefill.families[first], decode.families[then], counts[then], prefill.most[first])
            for first, then in pairs]
    if not any(most):
        return
    firsts, thens = np.array(pairs)[np.flatnonzero(most)].T
    decoding = decode.steady(thens, counts[thens], question.requests)
    start, token = np.array([transfer(prefill.families[first], decode.families[then])
                             for first, then in zip(firsts, thens, strict=True)]).T[:, :, None]

    def state(which: Ints, replicas: Ints) -> SteadyApart:
        filling = prefill.steady(firsts[which], replicas, question.requests)
        return SteadyApart(filling, decoding.rows(which), start[which], token[which])

    needed = fewest_of(lambda which, replicas: kept(state(which, replicas), question.targets),
                       np.array(most)[np.flatnonzero(most)])
    if not (which := np.flatnonzero(needed)).size:
        return
    ended = state(which, needed[which])
    found = FoundOptions.of(question, ended, np.stack([ended.prefill.watts, ended.decode.watts], axis=1),
                      (prefill.station.load, decode.station.load))
    for place, pair in enumerate(which):
        engines = ((prefill.families[firsts[pair]], int(needed[pair])),
                   (decode.families[thens[pair]], int(counts[thens[pair]])))
        if not _needs_no_router(*engines[0]):
            yield found.option(place, apart_settings(engines), engines)


def _needs_no_router(family: EngineFamily, replicas: int) -> bool:
    """Whether *family* is one behind a router of its own, and has a single engine: that is a candidate without it."""
    return ROUTER in family.shared and replicas * family.variants[0].serve.data_parallel_size == 1


def _room(prefill: EngineFamily, decode: EngineFamily, count: int, most: int) -> int:
    """How many engines of *prefill* there can be beside so many of *decode*, *most* alone."""
    kind = decode.kind
    if kind.most is None or kind != prefill.kind:
        return most
    return max(0, min(most, (kind.most - count * decode.gpus) // prefill.gpus))

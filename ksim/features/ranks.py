"""Ranks that differ: `detail = "rank"`, where GPUs of a stage have other requests, experts, clocks, hosts or links.

Each GPU that may differ from the others of its engine is a SimPy process (`ksim.engine.rank_processes`); those that
cannot are one process.  Where no GPU of a run may differ, this feature is left out: then a step takes all ranks as long
as it costs, and is worked out ahead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import simpy
from attrs import define, field, frozen
from numpy.typing import NDArray

from ksim.compute.expert_draws import ExpertDraws, mixture_layers
from ksim.compute.graph import Collective
from ksim.cost.energy import Clock
from ksim.cost.expert_times import ExpertTimes
from ksim.cost.step import Passes, Timer
from ksim.engine.event_engine import CollectiveFlows
from ksim.engine.loop_times import Horizon
from ksim.engine.rank_processes import Floats, Lane, Meeting, Process, Rank, RankRounds, RankStage, RankStages
from ksim.engine.ranks import DataParallelGroup
from ksim.flow.events import ExpertsMoved
from ksim.flow.log import Log
from ksim.foundation.errors import ConfigError
from ksim.foundation.rng import stream
from ksim.network.exchange import Exchange
from ksim.network.network import FleetNetwork, InterNodeTraffic, Network
from ksim.network.routes import Hop
from ksim.scenario.features import draws_experts
from ksim.scenario.scenario import Scenario
from ksim.simulation.features import RunningFleet, WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.ranks import RankSettings

__all__ = ["FEATURE"]

#: No GPU has less of the others' speed, however far its draw lies from the mean.
SLOWEST = 0.05


@frozen(eq=False)
class RankCosts:
    """The `rows` of the experts of each rank in one step, their `seconds` and, of these, those `clocked`: (layers,
    ranks)."""

    rows: NDArray[np.int64]
    seconds: Floats
    clocked: Floats


@frozen(eq=False)
class DrawnExperts:
    """Draws the rows of all experts of a stage, step by step, and prices them rank by rank.

    `half_times` are the prices in one of two micro-batches.
    """

    engine: int
    stage: int
    draws: ExpertDraws
    times: ExpertTimes
    half_times: ExpertTimes

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the kernels that depend on rows."""
        return frozenset(self.times.labels)

    def draw(self, tokens: int, parts: int = 1) -> RankCosts:
        """The next step, of so many *tokens* on all data ranks together, in so many *parts*; EPLB counts each of these.
        """
        drawn = [self.draws.draw(tokens // parts) for _ in range(parts)]
        times = self.times if parts == 1 else self.half_times
        costs, rows = [times.costs(each) for each in drawn], np.concatenate([each.rows for each in drawn])
        return RankCosts(rows, np.concatenate([each.seconds for each in costs]),
                         np.concatenate([each.compute_bound for each in costs]))

    def rearrange(self, network: FleetNetwork, gpus: Sequence[int], note: Callable[[ExpertsMoved], object]
                  ) -> simpy.Event | None:
        """Have EPLB move experts among *gpus*, if it is time; the event fires when all weights have arrived.

        All layers move at once, and all ranks wait, as in vLLM without `use_async`.
        """
        draws, env, start = self.draws, network.env, network.env.now
        if not draws.due:
            return None
        moves, slices = draws.rebalance(), len(gpus) // draws.mixture.ranks
        flows = [network.flows.start(size, network.links.path(f"gpu{gpus[source * slices + part]}",
                                                              f"gpu{gpus[target * slices + part]}"))
                 for (source, target), size in moves.bytes.items() for part in range(slices)]
        arrived = env.all_of([flow.done for flow in flows])

        def told(_: simpy.Event) -> None:
            note(ExpertsMoved(env.now, self.engine, self.stage, start, moves.experts, sum(flow.size for flow in flows),
                              moves.before, moves.after))

        arrived.callbacks.append(told)
        return arrived


@define(eq=False)
class PoolRanks:
    """Makes the ranks of the engines of `pool`, whose steps are noted in `log`."""

    pool: EnginePool
    env: Horizon
    log: Log
    network: Callable[[], FleetNetwork]
    _stages: dict[int, list[RankStage]] = field(factory=dict, init=False)

    @property
    def settings(self) -> RankSettings:
        return self.pool.deployment.scenario.ranks

    @property
    def _width(self) -> int:
        return self.pool.deployment.serve.tensor_parallel_size

    @property
    def _draws(self) -> bool:
        return draws_experts(self.pool.deployment.model, self.pool.deployment.serve, self.settings)

    @property
    def _shared(self) -> bool:
        """Whether the engines of a replica share experts."""
        return self.pool.deployment.shards[0].data > 1

    def group(self, size: int, width: int) -> DataParallelGroup:
        """The rounds of *size* engines that share experts, whose dummy steps have *width* tokens."""
        return RankRounds(self.env, size, width)

    def stages(self, number: int, place: EnginePlace, timers: Sequence[Timer],
               shared: CollectiveFlows | None) -> RankStages:
        """The stages of engine *number*, which is at *place*; its collectives between nodes share links by *shared*."""
        key = place.replica if self._shared else number
        if key not in self._stages:
            firsts = place.firsts if self._shared else (place.first,)
            begin = number - firsts.index(place.first)
            members = dict(zip(range(begin, begin + len(firsts)), firsts, strict=True))
            stages = range(self.pool.deployment.serve.pipeline_parallel_size)
            self._stages[key] = [self._stage(stage, members, place.firsts, shared, timers[stage]) for stage in stages]
        return RankStages(self.env, number, self._stages[key], timers)

    def _stage(self, number: int, members: Mapping[int, int], firsts: Sequence[int],
               shared: CollectiveFlows | None, timer: Timer) -> RankStage:
        """Stage *number* of engines by their numbers, each with its first GPU."""
        deployment, width = self.pool.deployment, self._width
        gpus = {member: range(self.pool.offset + first + number * width,
                              self.pool.offset + first + (number + 1) * width) for member, first in members.items()}
        apart = self._apart(gpus.values())
        lanes = {member: self._lane(own, apart) for member, own in gpus.items()}
        groups = {member: deployment.groups(number, first, firsts) for member, first in members.items()}
        experts = self._experts(number, timer, min(members))
        everyone = [gpu for own in gpus.values() for gpu in own]
        rearrange = None
        if experts is not None and deployment.serve.enable_eplb:
            rearrange = partial(experts.rearrange, self.network(), everyone, self.log.add)
        return RankStage(
            self.env, number, lanes, partial(_growing, deployment.network, next(iter(groups.values()))), self.log.add,
            experts=experts, slices=deployment.shards[number].slices, collect=self._collect(groups, lanes, shared),
            rearrange=rearrange)

    def _experts(self, stage: int, timer: Timer, engine: int) -> DrawnExperts | None:
        """What draws the experts of a stage of the engines from number *engine* on; None where all ranks have alike."""
        deployment, serve = self.pool.deployment, self.pool.deployment.serve
        shard = deployment.shards[stage]
        if not self._draws or not mixture_layers(deployment.model, shard):
            return None
        main = timer.main if isinstance(timer, Passes) else timer
        eplb = (serve.eplb_window_size, serve.eplb_step_interval) if serve.enable_eplb else (0, 0)
        draws = ExpertDraws.of(deployment.model, shard, deployment.scenario.seed, *eplb, engine)
        return DrawnExperts(engine, stage, draws, ExpertTimes(main), ExpertTimes(main.half))

    def _apart(self, engines: Any) -> frozenset[int]:
        """The places in a tensor-parallel group of GPUs that are processes of their own: the same in all *engines*."""
        settings, width = self.settings, self._width
        if self._draws or settings.speed_spread or settings.power_spread or settings.launch_jitter or (
                settings.processes):
            return frozenset(range(width))
        named = {slow.gpu for slow in settings.slow}
        return frozenset(place for gpus in engines for place, gpu in enumerate(gpus) if gpu in named)

    def _lane(self, gpus: Sequence[int], apart: frozenset[int]) -> Lane:
        """The ranks of an engine on *gpus*, of which those at the places *apart* are processes of their own."""
        alike = [gpu for place, gpu in enumerate(gpus) if place not in apart]
        owners = sorted([[gpus[place]] for place in apart] + ([alike] if alike else []))
        ranks = [self._rank(own) for own in owners]
        return Lane(ranks, self._delays(ranks))

    def _rank(self, gpus: Sequence[int]) -> Rank:
        deployment, settings = self.pool.deployment, self.settings
        power, drawn = deployment.gpu.power, [0.0, 0.0]
        if settings.speed_spread or settings.power_spread:
            drawn = stream(deployment.scenario.seed, f"gpu {gpus[0]}").standard_normal(2).tolist()
        changes = [slow for slow in settings.slow if slow.gpu in gpus]
        return Rank(self.env, gpus, changes, Clock(power, power.clocks) if power.clocks else None,
                    settings.power_spread * drawn[1] * power.idle,
                    bool(settings.processes) or any(change.start or change.end for change in changes),
                    max(SLOWEST, 1.0 + settings.speed_spread * drawn[0]))

    def _delays(self, ranks: Sequence[Rank]) -> Callable[[float], Sequence[float]]:
        """How late the hosts of *ranks* are with a step whose inputs are prepared at a moment."""
        jitter = self.settings.launch_jitter
        draws = stream(self.pool.deployment.scenario.seed, f"launches of gpu {ranks[0].gpus[0]}") if jitter else None
        return lambda moment: [rank.delay_at(moment) + (draws.exponential(jitter) if draws else 0.0) for rank in ranks]

    def _collect(self, groups: Mapping[int, Mapping[str, Sequence[int]]], lanes: Mapping[int, Lane],
                 shared: CollectiveFlows | None) -> "UnlikeLinks | None":
        """What makes meetings over links that are slow, or shared with KV; None if none is."""
        narrow = {gpu - self.pool.offset: rank for lane in lanes.values() for rank in lane.ranks for gpu in rank.gpus
                  if self.settings.processes or any(change.link != 1.0 for change in rank.changes)}
        return UnlikeLinks(self.env, self.pool.deployment.network, groups, narrow, shared) if narrow or shared else None


def _growing(network: Network, groups: Mapping[str, Sequence[int]], collective: Collective) -> float:
    """How many seconds of *collective* are for its bytes."""
    ranks = groups[collective.group]
    return network.seconds(collective, ranks) - network.route(collective, ranks).seconds(0.0)


class LateMeeting(Meeting):
    """A meeting that ends `late` seconds later than over links that are alike."""

    def _begin(self) -> None:
        self._fire(self.latest + self.seconds + self.late)


class SharedMeeting(Meeting):
    """A meeting whose collective is played once all are there: `play` makes the event of its end.

    It is not where nobody `else_there` is on its links then: a transfer that begins during it, which takes a hundred
    times as long, goes its way.
    """

    play: Callable[[], simpy.Event]
    else_there: Callable[[], bool]

    def _begin(self) -> None:
        self.env.process(self._played())

    def _played(self) -> Process:
        env = self.env
        if self.latest > env.now:
            yield env.timeout(self.latest - env.now)
        if self.else_there():
            began = env.now
            yield self.play()
            late = env.now - began - self.seconds
            self.late = late if late > ROUNDING * self.seconds else 0.0
        self._fire(self.latest + self.seconds + self.late)


#: What rounding alone may make of a collective's seconds.
ROUNDING = 1e-6
#: A collective of more hops is one flow over all of its links, as slow as the fullest of them: hop by hop, a ring of 16
#: takes 500 times the CPU time.
MOST_HOPS = 64


@define(eq=False)
class UnlikeLinks:
    """Collectives of the GPUs in `groups`, by engine, where some may have `narrow` links, or `shared` ones.

    GPUs have the numbers of their system.  Over slow links, hops take longer, and all wait for the slowest chain of
    them.  Over shared links, hops are flows beside those of KV.
    """

    env: Horizon
    network: Network
    groups: Mapping[int, Mapping[str, Sequence[int]]]
    narrow: Mapping[int, Rank]
    shared: CollectiveFlows | None = None
    _known: dict[tuple[Any, ...], float] = field(factory=dict, init=False)

    def __call__(self, collective: Collective, member: int, ranks: int, seconds: float) -> Meeting | None:
        gpus = tuple(self.groups[member][collective.group])
        shares = self._shares(gpus)
        shared = self.shared
        if shared is not None and (traffic := shared.collective_traffic.of(collective, gpus)):
            meeting = SharedMeeting(self.env, ranks, seconds)
            meeting.late = self._late(collective, gpus, shares)
            meeting.play = partial(self._play, shared, collective, gpus, traffic)
            meeting.else_there = lambda: not shared.flows.idle(traffic.path)
            return meeting
        if not shares:
            return None
        late = LateMeeting(self.env, ranks, seconds)
        late.late = self._late(collective, gpus, shares)
        return late

    def _shares(self, gpus: Sequence[int]) -> dict[int, float]:
        """The GPUs whose links are slow now, and what they have of the others' bandwidth."""
        shares = {gpu: rank.link_at(self.env.now) for gpu, rank in self.narrow.items() if gpu in gpus}
        return {gpu: share for gpu, share in shares.items() if share != 1.0}

    def _late(self, collective: Collective, gpus: tuple[int, ...], shares: Mapping[int, float]) -> float:
        """By how many seconds *collective* takes longer over links that are slow."""
        if not shares:
            return 0.0
        key = (collective, gpus, *shares.items())
        if key not in self._known:
            route = self.network.route(collective, gpus)
            late = route.slowed(shares).seconds(collective.bytes) - route.seconds(collective.bytes)
            self._known[key] = late * route.erring(self.network.deviation)
        return self._known[key]

    def _play(self, shared: CollectiveFlows, collective: Collective, gpus: tuple[int, ...],
              traffic: InterNodeTraffic) -> simpy.Event:
        """Have *gpus* exchange what they have, hop by hop; the event fires when all are through."""
        route, shares, size = self.network.route(collective, gpus), self._shares(gpus), collective.bytes
        if sum(map(len, route.rounds)) > MOST_HOPS:
            seconds = traffic.seconds + self._late(collective, gpus, shares)
            return shared.flows.start(traffic.size, traffic.path, traffic.size / seconds, traffic.weights).done

        def send(hop: Hop) -> simpy.Event:
            """Between nodes, a flow that is as fast as the hop where it is alone."""
            over = shared.collective_traffic.hop(hop, gpus)
            if over is None:
                return self.env.timeout(size * hop.per_byte)
            return shared.flows.start(size * hop.passes, over[0], hop.passes / hop.per_byte, over[1]).done

        return Exchange(self.env, route.slowed(shares), size, send).play(gpus)


class RanksFeature(WiredFeature):
    """Engines whose GPUs are SimPy processes."""

    def ranks(self, pool: EnginePool, env: Horizon, log: Log, network: Callable[[], FleetNetwork]) -> PoolRanks:
        """What makes the ranks of *pool*."""
        return PoolRanks(pool, env, log, network)

    def check_fleet(self, scenario: Scenario, pools: Sequence[EnginePool], links: Any) -> None:
        """Raise ConfigError for GPUs that the fleet does not have, and clocks that they cannot be set to."""
        used = {gpu for pool in pools for place in pool.places for gpu in pool.gpus(place)}
        for number, slow in enumerate(scenario.ranks.slow):
            if slow.gpu not in used:
                raise ConfigError(f"ranks.slow[{number}].gpu", f"no engine runs on GPU {slow.gpu}; engines have GPUs"
                                                               f" {_spans(sorted(used))}")
            gpu = next(pool.deployment.gpu for pool in pools for place in pool.places if slow.gpu in pool.gpus(place))
            if slow.clock is not None:
                from ksim.cost.energy import Setting
                from ksim.engine.governors import checked
                checked(Setting(clock=slow.clock), gpu, f"ranks.slow[{number}]")

    def begin(self, running: RunningFleet) -> None:
        """Start the processes that the scenario names."""
        if choices := running.fleet.scenario.ranks.processes:
            from ksim.features.interference import start
            start(choices, running)

    def facts(self, pool: EnginePool, place: EnginePlace) -> Mapping[str, Any]:
        """The watts that its GPUs always draw, on average."""
        slow = [each.watts for each in pool.deployment.scenario.ranks.slow
                if each.gpu in pool.gpus(place) and not each.start and each.end is None]
        idle = pool.deployment.gpu.power.idle
        return {"static_watts": idle + sum(slow) / pool.deployment.serve.gpus} if any(slow) else {}


def _spans(numbers: Sequence[int]) -> str:
    """*numbers*, which ascend, as spans such as 0 to 7."""
    return ", ".join(f"{begin} to {end}" if begin < end else str(begin) for begin, end in _runs(numbers))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = before = numbers[0]
    for number in numbers[1:]:
        if number != before + 1:
            yield begin, before
            begin = number
        before = number
    yield begin, before


FEATURE = RanksFeature()

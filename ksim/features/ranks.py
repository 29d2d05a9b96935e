"""Ranks that differ: `detail = "rank"`, where GPUs of a stage have other requests, experts, clocks, hosts or links.

Each GPU that may differ from the others of its engine is a SimPy process (`ksim.engine.rank_processes`); those that
cannot are one process.  Where no GPU of a run may differ, this feature is left out: then a step takes all ranks as long
as it costs, and is worked out ahead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import define, field

from ksim.compute.expert_draws import ExpertDraws, mixture_layers
from ksim.compute.graph import Collective
from ksim.cost.energy import Clock, Setting
from ksim.cost.expert_times import ExpertTimes
from ksim.cost.step import Passes, Timer
from ksim.engine.collective_flows import CollectiveFlows
from ksim.engine.governors import checked
from ksim.engine.loop_times import Horizon
from ksim.engine.rank_experts import DrawnExperts
from ksim.engine.rank_links import UnlikeLinks
from ksim.engine.rank_processes import Rank
from ksim.engine.rank_stages import RankRounds, RankStage, RankStages, TensorGroup
from ksim.engine.ranks import DataParallelGroup
from ksim.flow.log import Log
from ksim.foundation.errors import ConfigError
from ksim.foundation.rng import stream
from ksim.network.network import FleetNetwork, Network
from ksim.scenario.features import draws_experts
from ksim.scenario.scenario import Scenario
from ksim.simulation.features import RunningFleet, WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.hardware import RankSettings

__all__ = ["FEATURE"]

#: No GPU has less of the others' speed, however far its draw lies from the mean.
SLOWEST = 0.05


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
            experts=experts, slices=deployment.shards[number].slices, links=self._links(groups, lanes, shared),
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

    def _lane(self, gpus: Sequence[int], apart: frozenset[int]) -> TensorGroup:
        """The ranks of an engine on *gpus*, of which those at the places *apart* are processes of their own."""
        alike = [gpu for place, gpu in enumerate(gpus) if place not in apart]
        owners = sorted([[gpus[place]] for place in apart] + ([alike] if alike else []))
        ranks = [self._rank(own) for own in owners]
        return TensorGroup(ranks, self._delays(ranks))

    def _rank(self, gpus: Sequence[int]) -> Rank:
        deployment, settings = self.pool.deployment, self.settings
        power, drawn = deployment.gpu.power, [0.0, 0.0]
        if settings.speed_spread or settings.power_spread:
            drawn = stream(deployment.scenario.seed, f"gpu {gpus[0]}").standard_normal(2).tolist()
        changes = [slow for slow in settings.slow if slow.gpu in gpus]
        return Rank(self.env, gpus, changes, Clock(power, power.clocks) if power.clocks else None,
                    settings.power_spread * drawn[1] * power.idle,
                    bool(settings.processes) or not all(change.always for change in changes),
                    max(SLOWEST, 1.0 + settings.speed_spread * drawn[0]))

    def _delays(self, ranks: Sequence[Rank]) -> Callable[[float], Sequence[float]]:
        """How late the hosts of *ranks* are with a step whose inputs are prepared at a moment."""
        jitter = self.settings.launch_jitter
        draws = stream(self.pool.deployment.scenario.seed, f"launches of gpu {ranks[0].gpus[0]}") if jitter else None
        return lambda moment: [rank.delay_at(moment) + (draws.exponential(jitter) if draws else 0.0) for rank in ranks]

    def _links(self, groups: Mapping[int, Mapping[str, Sequence[int]]], lanes: Mapping[int, TensorGroup],
               shared: CollectiveFlows | None) -> UnlikeLinks | None:
        """What makes meetings over links that are slow, or shared with KV; None if none is."""
        narrow = {gpu - self.pool.offset: rank for lane in lanes.values() for rank in lane.ranks for gpu in rank.gpus
                  if self.settings.processes or any(change.link != 1.0 for change in rank.changes)}
        return UnlikeLinks(self.env, self.pool.deployment.network, groups, narrow, shared) if narrow or shared else None


def _growing(network: Network, groups: Mapping[str, Sequence[int]], collective: Collective) -> float:
    """How many seconds of *collective* are for its bytes."""
    ranks = groups[collective.group]
    return network.seconds(collective, ranks) - network.route(collective, ranks).seconds(0.0)


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
                checked(Setting(clock=slow.clock), gpu, f"ranks.slow[{number}]")

    def coupling(self, pools: Sequence[EnginePool]) -> str:
        return "processes of your own may look at all engines" if pools[0].deployment.scenario.ranks.processes else ""

    def begin(self, running: RunningFleet) -> None:
        """Start the processes that the scenario names."""
        if choices := running.scenario.ranks.processes:
            from ksim.features.interference import start
            start(choices, running)

    def facts(self, pool: EnginePool, place: EnginePlace) -> Mapping[str, Any]:
        """The watts that its GPUs always draw, on average."""
        slow = [each.watts for each in pool.deployment.scenario.ranks.slow
                if each.gpu in pool.gpus(place) and each.always]
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

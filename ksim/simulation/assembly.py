"""From a scenario to engines: everything that it names, built and wired."""

from collections.abc import Callable, Container
from math import inf, nan
from typing import Any

import simpy
from attrs import evolve, frozen

from ksim.cluster.cluster import Cluster
from ksim.cluster.remote_replica import RemoteReplica
from ksim.compute.model import Model
from ksim.cost.clock import Clock, Setting
from ksim.cost.overlap import Overlap
from ksim.cost.step import StepTimer
from ksim.engine.data_parallel_group import DataParallelGroup
from ksim.engine.engine import Engine
from ksim.engine.event_engine import EventEngine
from ksim.engine.governors import Supervised, checked
from ksim.engine.horizon import Horizon
from ksim.engine.lookahead_engine import LookaheadEngine
from ksim.engine.rank_group import RankGroup
from ksim.engine.stages import KernelByKernel, Stages, WholeSteps
from ksim.flow.events import EngineBuilt
from ksim.flow.log import Log
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.kv_cache.block_cache import BlockCache
from ksim.kv_cache.cache import Cache
from ksim.kv_cache.evictions.vllm import vllm
from ksim.kv_cache.sglang import SglangCache
from ksim.kv_cache.vllm import VllmCache
from ksim.network.network import Network
from ksim.oracles import peak
from ksim.oracles.efficiency.scaled import ScaledOracle
from ksim.results.footprint import Rates
from ksim.scheduling.scheduler import Scheduler
from ksim.simulation.defaults import Defaults, fused, graphs
from ksim.simulation.lookup import (
    engine_of,
    gpu_of,
    host_of,
    model_of,
    network_of,
    oracle_choice,
    plugin,
    policy_of,
    rates_of,
    system_of,
)
from ksim.simulation.routing import routing_of
from ksim.simulation.scenario import Scenario
from ksim.simulation.sizing import kv_blocks, limits, shards_of
from ksim.specs.deployment import Shard
from ksim.specs.engine import EngineVersion
from ksim.specs.experts import Routing
from ksim.specs.hardware import Gpu, System
from ksim.specs.host import Host


@frozen
class Site:
    """What a scenario's engines have in common; where it `skips`, those that can go ahead of the clock do."""

    scenario: Scenario
    model: Model
    gpu: Gpu
    system: System
    network: Network
    oracle: Any
    host: Host
    version: EngineVersion
    routing: Routing = Routing()
    rates: Rates = Rates()
    skips: bool = True

    @classmethod
    def of(cls, scenario: Scenario) -> "Site":
        """Look everything up, and derive the settings that are not given; raises KsimError for what cannot be."""
        model, system = model_of(scenario.model), system_of(scenario.gpu, scenario.system, scenario.nodes)
        gpu = gpu_of(system.gpu)
        version = engine_of(scenario.engine)
        serve = Defaults(scenario.serve, version, model, gpu).complete()
        if (wanted := serve.gpus * serve.data_parallel_size) > system.gpus:
            more = (f"set nodes to {-(-wanted // system.gpus_per_node)} or more" if system.network else
                    "name a system that has as many, or with a [network] between nodes (docs/plugins.md)")
            count = serve.data_parallel_size
            replicas = f"{count} replicas of {serve.gpus} need" if count > 1 else "one replica needs"
            raise DoesNotFit(f"{replicas} {wanted} GPUs, and {system.name} has {system.gpus}; {more}")
        network = network_of(system, (*fused(serve), *map(Choice, scenario.collectives)))
        oracle = oracle_choice(scenario.oracle, system.gpu)
        resolved = evolve(scenario, gpu=system.gpu, system=scenario.system or gpu.system or None, serve=serve,
                          oracle=oracle)
        priced = _priced(plugin("oracles", oracle), version)
        return cls(resolved, model, gpu, system, network, priced, host_of(scenario.host), version,
                   routing_of(scenario.routing, model), rates_of(scenario.energy, system))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What users should know of the GPU."""
        power = self.gpu.power
        if power.basis != "estimated":
            return ()
        return (f"power of {self.gpu.name} is estimated from its data sheet ({power.limit:g} W, of which"
                f" {power.idle:g} idle): joules may be {power.reach:.0%} off",)

    @property
    def shards(self) -> list[Shard]:
        """One rank's share in each pipeline stage."""
        return shards_of(self.model, self.scenario.serve, self.routing)

    def groups(self, stage: int, first: int) -> dict[str, tuple[int, ...]]:
        """The GPUs that meet in each kind of collective, for a stage of an engine whose first GPU is *first*."""
        serve = self.scenario.serve
        width = serve.tensor_parallel_size
        start = first + stage * width
        alike = tuple(range(stage * width, serve.gpus * serve.data_parallel_size, serve.gpus))
        return {"tensor": tuple(range(start, start + width)), "pipeline": (start, start + width), "data": alike,
                "expert": tuple(gpu + rank for gpu in alike for rank in range(width))}

    def timers(self, first: int = 0) -> list[StepTimer]:
        """One step timer for each pipeline stage of an engine whose first GPU is *first*."""
        serve = self.scenario.serve
        captured = graphs(serve)
        overlap = Overlap(serve.overlap_stages, serve.overlap_sms) if serve.overlap_stages > 1 else None
        timers = [StepTimer(self.model, shard, self.gpu, self.oracle, self.network, self.groups(stage, first), captured,
                            self.host, overlap)
                  for stage, shard in enumerate(self.shards)]
        for timer in timers[1:]:
            timers[0].share_with(timer)
        return timers


def _priced(oracle: Any, version: EngineVersion) -> Any:
    """*oracle* for the kernels that *version* launches."""
    return ScaledOracle(oracle, version.paces) if version.paces else oracle


def build(site: Site, env: Horizon, log: Log, on_end: Callable[[], None],
          here: Container[int] | None = None) -> Cluster:
    """Build *site*'s engines and the cluster around them; those that are not *here* are left to other processes."""
    scenario = site.scenario
    ranks = scenario.serve.data_parallel_size
    group = DataParallelGroup(env, ranks) if site.shards[0].data > 1 else None
    router = plugin("cluster.routers", scenario.router)
    watched = ranks > 1 and not getattr(router, "blind", False)
    blocks = kv_blocks(site.model, site.shards, site.gpu, scenario.serve, site.system)
    engines = [_engine(site, number, env, log, blocks, group, watched) if here is None or number in here
               else RemoteReplica(number) for number in range(ranks)]
    return Cluster(env, router, engines, log, scenario.workload.max_concurrency, on_end)


def _engine(site: Site, number: int, env: Horizon, log: Log, blocks: int, group: DataParallelGroup | None,
            watched: bool) -> Engine:
    serve = site.scenario.serve
    first = number * serve.gpus
    timers = site.timers(first)
    cache = _cache(site, blocks)
    scheduler = Scheduler(limits(serve, site.version), policy_of(serve.scheduling_policy), cache,
                          plugin("scheduling.admissions", serve.admission))
    log.engines.append(_record(site, number, cache))
    stages, governor = _stages(site, env, first), _governor(site)
    common: dict[str, Any] = {"number": number, "env": env, "scheduler": scheduler, "timers": timers, "log": log,
                              "host": site.host, "workers": serve.gpus, "governor": governor}
    if site.skips and isinstance(stages, WholeSteps) and _may_skip(stages, group, governor):
        return LookaheadEngine(**common, clock=stages.clocks[0] if stages.clocks else None, watched=watched)
    return EventEngine(**common, stages=stages, group=group)


def _may_skip(stages: WholeSteps, group: DataParallelGroup | None, governor: Supervised | None) -> bool:
    return (stages.stages == 1 and group is None
            and (governor is None or governor.governor is None))


def _governor(site: Site) -> Supervised | None:
    """What the scenario tells GPUs to keep to; None where that is nothing, ConfigError where it cannot be."""
    power = site.scenario.power
    fixed = checked(Setting(power.cap, power.clock), site.gpu, "power")
    governor = plugin("engine.governors", power.governor) if power.governor else None
    return Supervised(site.gpu, fixed, governor) if power else None


def _cache(site: Site, blocks: int) -> Cache:
    """The KV cache by the rules that the scenario names, with room for *blocks* of its blocks."""
    serve = site.scenario.serve
    eviction = plugin("kv_cache.evictions", serve.eviction or Choice("vllm" if serve.prefix_cache == "vllm" else "lru"))
    assert serve.block_size is not None, "settings are derived before engines are built"
    if serve.prefix_cache == "sglang":
        return SglangCache(blocks * serve.block_size, serve.enable_prefix_caching, eviction)
    room = blocks, serve.block_size, serve.enable_prefix_caching
    if eviction is vllm:
        return VllmCache(*room, site.version.unhashed_blocks_first)
    return BlockCache(*room, eviction, site.version.unhashed_blocks_first)


def _known_clock(gpu: Gpu) -> float:
    clocks = gpu.power.clocks
    return nan if clocks is None else clocks.known or clocks.boost


def _stages(site: Site, env: simpy.Environment, first: int) -> Stages:
    power, stages = site.gpu.power, len(site.shards)
    clocks = [Clock(power, power.clocks) for _ in range(stages)] if power.clocks else []
    if site.scenario.detail == "step":
        return WholeSteps(env, stages, clocks)
    if site.shards[0].data > 1:
        raise ConfigError("detail", f"'kernel' follows the ranks of one engine, and {site.shards[0].data} share the"
                                    f" experts of {site.model.name}; set it to 'step'")
    groups = [site.groups(stage, first) for stage in range(stages)]
    return KernelByKernel(env, [RankGroup(env, site.network, group["tensor"], group) for group in groups], clocks)


def _record(site: Site, number: int, cache: Cache) -> EngineBuilt:
    gpu, serve = site.gpu, site.scenario.serve
    sleep_watts, sleep_after = _sleep(site)
    return EngineBuilt(
        engine=number, name=f"engine{number}", gpu=gpu.name, ranks=serve.tensor_parallel_size,
        stages=serve.pipeline_parallel_size, kv_blocks=cache.capacity, block_tokens=cache.block_tokens,
        peak_flops=peak(gpu, serve.precision.activations), peak_bandwidth=gpu.bandwidth,
        static_watts=gpu.power.idle, memory=gpu.memory, weights=site.model.weights(site.shards[0]),
        sleep_watts=sleep_watts, sleep_after=sleep_after, limit_watts=site.scenario.power.cap or gpu.power.limit,
        reach=gpu.power.reach, known_clock=_known_clock(gpu),
        least_clock=gpu.power.clocks.least if gpu.power.clocks else nan, convoy=0 if site.shards[0].data > 1 else -1,
    )


def _sleep(site: Site) -> tuple[float, float]:
    """What a GPU that sleeps draws, and after how long without work it does; awake for ever where nothing is asked."""
    after, watts = site.scenario.energy.sleep_after, site.gpu.power.sleep
    if after is None:
        return site.gpu.power.idle, inf
    if watts is None:
        raise ConfigError("energy.sleep_after", f"{site.gpu.name} has no [power] sleep, the watts that it draws asleep;"
                                                " state them in a data file of your own, or leave this out")
    return watts, after

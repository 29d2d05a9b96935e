"""From a fleet to engines and the cluster around them.

A deployment's LoRA adapters, scheduler, cache and connector become an engine's; a scenario's router and flow control
become the cluster's, with the signals that they go by.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from math import inf, nan
from typing import Any

import simpy
from attrs import evolve, field, fields_dict, frozen, has

from ksim.cluster.cluster import Cluster, RemoteReplica, RouterAndControl
from ksim.cluster.forecast import models_of
from ksim.cluster.gateway import Gateway
from ksim.cluster.signals import check_signals, late_events, signals_of, watches
from ksim.compute.adapters import bytes_by_module, matrices
from ksim.cost.energy import Clock, Setting
from ksim.engine.engine import Engine
from ksim.engine.event_engine import CollectiveFlows
from ksim.engine.governors import Supervised, checked
from ksim.engine.kinds import AdapterLoading, engine_of
from ksim.engine.loop_times import Horizon
from ksim.engine.ranks import DataParallelGroup, KernelByKernel, RankGroup, Stages, WholeSteps
from ksim.flow.events import EngineBuilt
from ksim.flow.log import Log
from ksim.flow.request import AdapterLoad, BlockKeys, Request
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import Cache
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.hybrid import HybridCache
from ksim.kv.cache.vllm import VllmCache
from ksim.kv.transfer.transfer import TransferNetwork
from ksim.oracles import peak
from ksim.scenario.connector_parts import offload_settings
from ksim.scenario.defaults import Deployment
from ksim.scenario.drafters import drafted, speculation_of, with_prompt_logprobs
from ksim.scenario.scenario import Scenario
from ksim.scenario.sizing import limits
from ksim.scenario.vision import prepare, vision_of
from ksim.scheduling.schedulers import AdapterStore, scheduler_of
from ksim.simulation import transfer_assembly
from ksim.simulation.fleet import Fleet
from ksim.simulation.offloading import Offloads, sglang_cache, tiers_of_pool
from ksim.simulation.pool import Placement, Pool
from ksim.specs.hardware import Gpu, System
from ksim.specs.settings import EngineSettings

__all__ = ["adapter_store", "adapters_of", "loading_of", "pair_router_of", "router_of", "build"]


#: Bytes/s that a node reads from its disk, where the system has no `[storage]`: an estimate for one NVMe disk.
DISK = 3e9
#: What a worker launches for each matrix: one kernel clears its place in the slot, one copies it there.
LAUNCHES = 2


def adapter_store(serve: EngineSettings) -> AdapterStore | None:
    """Where the adapters of an engine are, None without `enable_lora`."""
    if not serve.enable_lora:
        return None
    return AdapterStore(adapters_of(serve), serve.max_loras, serve.max_cpu_loras or serve.max_loras)


def adapters_of(serve: EngineSettings) -> Mapping[str, AdapterLoad]:
    """What there is to load of each adapter, by its name, in the order in which vLLM loads them when it starts."""
    return {name: AdapterLoad(name, module.rank, module.target_modules or ())
            for module in serve.lora_modules for name in module.names}


def loading_of(deployment: Deployment) -> AdapterLoading:
    """How long a worker of *deployment* takes over adapters; each has the matrices of its own stage."""
    launched = LAUNCHES * matrices(deployment.model) / deployment.serve.pipeline_parallel_size
    return AdapterLoading(bytes_by_module(deployment.model), _disk_rate(deployment.system),
                          launched * deployment.host.worker.eager)


def _disk_rate(system: System) -> float:
    """Bytes/s at which a node of *system* reads adapters that are not in its memory."""
    storage = system.storage
    if storage is None:
        return DISK
    whole = storage.servers * storage.bandwidth
    return min(whole, storage.node or whole)


#: The eviction that vLLM's cache has built in.
VLLM = Choice("vllm")
#: How a prefill and a decode engine are chosen by default.
EACH_SIDE = Choice("each_side")


def router_of(fleet: Fleet) -> Any:
    """What chooses an engine for each request; raises ConfigError if it needs signals that are turned off."""
    router = _routers_made(fleet, "cluster.routers", fleet.scenario.router)
    if not fleet.splits:
        check_signals(router, fleet.scenario.router.name, fleet.scenario.signals)
    return router


def pair_router_of(fleet: Fleet) -> Any:
    """What chooses two engines for each request; None where no engine prefills for others."""
    if not fleet.splits:
        return None
    choice = fleet.scenario.pair_router or EACH_SIDE
    router = _routers_made(fleet, "cluster.pair_routers", choice)
    check_signals(router, choice.name, fleet.scenario.signals, "pair_router")
    return router


def _routers_made(fleet: Fleet, folder: str, choice: Choice) -> Any:
    """The plug-in; one that draws, and is given no seed, has that of the scenario."""
    made = catalog.find(folder, choice.name)
    if isinstance(made, type) and has(made) and "seed" in fields_dict(made) and "seed" not in choice.options:
        choice = evolve(choice, options={**choice.options, "seed": fleet.scenario.seed})
    return plugin(folder, choice)


def build(fleet: Fleet | Deployment, env: Horizon, log: Log, on_end: Callable[[], None],
          here: Container[int] | None = None, tells: bool = False) -> Cluster:
    """Build the engines of *fleet* and the cluster around them; engines that are not *here* run in other processes.

    Caches of an engine that *tells* let anybody know what enters and leaves them.
    """
    fleet = Fleet.of(fleet)
    scenario = fleet.scenario
    if scenario.workload.may_abort:
        fleet = fleet.stepping()
    router, pair_router = router_of(fleet), pair_router_of(fleet)
    chooser, key = pair_router or router, "pair_router" if pair_router else "router"
    gateway = _gateway(scenario, chooser, env, log)
    signals = signals_of(RouterAndControl(chooser, gateway.control, key) if gateway else chooser, key)
    network = transfer_assembly.fleet_network(fleet, env, log)
    transfers = network if isinstance(network, TransferNetwork) else None
    watched = (fleet.engines > 1 or gateway is not None) and watches(signals, scenario.signals)
    assembly = _Assembly(env, log, watched, here, transfers,
                         tells or late_events(signals, scenario.signals),
                         Offloads(network, log) if network else None)
    engines = [engine for pool in fleet.pools for engine in assembly.engines(pool)]
    _tell_measured(engines, chooser, gateway and gateway.control)
    return Cluster(env, router, engines, log, scenario.workload.max_concurrency, on_end, pair_router=pair_router,
                   transfer_network=transfers, prepare=_preparation(fleet.pools[0].deployment),
                   signals=scenario.signals, seed=scenario.seed, gateway=gateway)


def _preparation(deployment: Deployment) -> Callable[[Request], Request] | None:
    """What makes tokens of a request's images, for a model that takes any; all pools serve one model."""
    vision = vision_of(deployment.model, deployment.serve)
    return partial(prepare, processor=vision.processor) if vision else None


@frozen
class _Assembly:
    """Builds engines that are `here`, or all; a router looks at them if they are `watched`.

    If a cache `tells` what enters and leaves it, engines with blocks of one size number them alike.
    """

    env: Horizon
    log: Log
    watched: bool
    here: Container[int] | None
    network: TransferNetwork | None = None
    tells: bool = False
    offloads: Offloads | None = None
    _keys: dict[int, BlockKeys] = field(factory=dict, init=False)

    def engines(self, pool: Pool) -> Iterator[Engine | RemoteReplica]:
        """The engines of *pool*; those of a replica that share experts are a group, which takes its steps together."""
        deployment, ranks = pool.deployment, pool.deployment.serve.data_parallel_size
        shared = deployment.shards[0].data > 1
        width = drafted(deployment.serve) + 1
        groups = [DataParallelGroup(self.env, ranks, width) if shared else None for _ in range(pool.replicas)]
        blocks, collective_flows = deployment.kv_blocks, dict[int, CollectiveFlows | None]()
        for number, place in zip(pool.numbers, pool.places, strict=True):
            if self.here is None or number in self.here:
                key = place.replica if shared else number
                if key not in collective_flows:
                    collective_flows[key] = self._collective_flows(pool, place)
                yield self._engine(pool, number, place, self._cache(deployment, blocks), (groups[place.replica],
                                                                                     collective_flows[key]))
            else:
                yield RemoteReplica(number, pool.role)

    def _cache(self, deployment: Deployment, blocks: int) -> Cache:
        size = deployment.serve.block_size
        assert size is not None, "settings are derived before engines are built"
        return _cache(deployment, blocks, self._keys.setdefault(size, BlockKeys(size)) if self.tells else None)

    def _collective_flows(self, pool: Pool, place: Placement) -> CollectiveFlows | None:
        return transfer_assembly.collective_flows(self.network, pool, place) if self.network else None

    def _engine(self, pool: Pool, number: int, place: Placement, cache: Cache,
                joined: tuple[DataParallelGroup | None, CollectiveFlows | None]) -> Engine:
        deployment, serve, (group, collective_flows) = pool.deployment, pool.deployment.serve, joined
        connector, worker, endpoint = transfer_assembly.connector_and_worker(
            self.offloads, pool, number, place, cache) if self.offloads else (None, None, None)
        parts = (limits(serve, deployment.version), plugin("scheduling.policies", serve.scheduling_policy), cache,
                 plugin("scheduling.admissions", serve.admission))
        vision = vision_of(deployment.model, serve)
        scheduler = scheduler_of(parts, connector, speculation_of(serve, deployment.scenario.seed),
                                 vision.limits if vision else None, adapter_store(serve))
        self.log.engines.append(_record(pool, number, place, cache))
        stages, governor = _stages(deployment, self.env, place), _governor(deployment)
        common: dict[str, Any] = {
            "number": number, "env": self.env, "scheduler": scheduler, "log": self.log, "host": deployment.host,
            "timers": deployment.timers(place.first, place.firsts), "workers": serve.gpus, "governor": governor,
            "logprobs": with_prompt_logprobs, "seed": deployment.scenario.seed, "role": pool.role,
            "gpus": pool.gpus(place), "connector": worker, "endpoint": endpoint}
        return engine_of(stages, group, collective_flows, skips=deployment.skips, watched=self.watched,
                         loading=loading_of(deployment) if serve.enable_lora else None, **common)


def _governor(deployment: Deployment) -> Supervised | None:
    """The power settings that GPUs keep to, or None without any; raises ConfigError for what they cannot be set to."""
    power = deployment.scenario.power
    fixed = checked(Setting(power.cap, power.clock), deployment.gpu, "power")
    governor = plugin("engine.governors", power.governor) if power.governor else None
    return Supervised(deployment.gpu, fixed, governor) if power else None


def _cache(deployment: Deployment, blocks: int, keys: BlockKeys | None) -> Cache:
    """A KV cache of *blocks* blocks, as the engine's settings describe it; with *keys*, it tells of each block."""
    serve = deployment.serve
    choice = serve.eviction or Choice("vllm" if serve.prefix_cache == "vllm" else "lru")
    eviction = plugin("kv.cache.evictions", choice)
    assert serve.block_size is not None, "settings are derived before engines are built"
    if keys is not None and (serve.prefix_cache == "sglang" or not deployment.layout.plain):
        raise ConfigError("signals", "KV events of SGLang's cache, or of layers that keep different things, cannot be"
                                     " late or lost; leave out delay and loss, or name a router without kv_events")
    if serve.prefix_cache == "sglang":
        return sglang_cache(deployment, blocks * serve.block_size, eviction)
    if not deployment.layout.plain:
        return _hybrid_cache(deployment, blocks)
    room = blocks, serve.block_size, bool(serve.enable_prefix_caching)
    unhashed_first = deployment.version.unhashed_blocks_first
    offloads = offload_settings(serve.kv_transfer_config) is not None
    if choice == VLLM and keys is None and not offloads:
        return VllmCache(*room, unhashed_first)
    return BlockCache(*room, None if choice == VLLM else eviction, unhashed_first, keys)


def _hybrid_cache(deployment: Deployment, blocks: int) -> HybridCache:
    serve, layout = deployment.serve, deployment.layout
    assert serve.max_model_len is not None, "settings are derived before engines are built"
    return HybridCache(blocks, [group.group for group in layout.groups], bool(serve.enable_prefix_caching),
                       layout.in_flight, serve.max_model_len, unhashed_first=deployment.version.unhashed_blocks_first)


def _known_clock(gpu: Gpu) -> float:
    clocks = gpu.power.clocks
    return nan if clocks is None else clocks.known or clocks.boost


def _stages(deployment: Deployment, env: simpy.Environment, place: Placement) -> Stages:
    power, stages = deployment.gpu.power, len(deployment.shards)
    clocks = [Clock(power, power.clocks) for _ in range(stages)] if power.clocks else []
    if deployment.scenario.detail == "step":
        return WholeSteps(env, stages, clocks)
    if (replicas := deployment.shards[0].data) > 1:
        raise ConfigError("detail", f"'kernel' follows the ranks of one engine, and {replicas} share the experts of"
                                    f" {deployment.model.name}; set it to 'step'")
    groups = [deployment.groups(stage, place.first, place.firsts) for stage in range(stages)]
    return KernelByKernel(env, [RankGroup(env, deployment.network, group["tensor"], group) for group in groups], clocks)


def _record(pool: Pool, number: int, place: Placement, cache: Cache) -> EngineBuilt:
    deployment = pool.deployment
    gpu, serve, shard = deployment.gpu, deployment.serve, deployment.shards[0]
    sleep_watts, sleep_after = _sleep(deployment)
    return EngineBuilt(
        engine=number, name=pool.engine_name(number), gpu=gpu.name, ranks=serve.tensor_parallel_size,
        stages=serve.pipeline_parallel_size, kv_blocks=cache.capacity, block_tokens=cache.block_tokens,
        peak_flops=peak(gpu, serve.precision.activations), peak_bandwidth=gpu.bandwidth,
        static_watts=gpu.power.idle, memory=gpu.memory, weights=deployment.model.weights(shard),
        sleep_watts=sleep_watts, sleep_after=sleep_after, limit_watts=deployment.scenario.power.cap or gpu.power.limit,
        reach=gpu.power.reach, known_clock=_known_clock(gpu),
        least_clock=gpu.power.clocks.least if gpu.power.clocks else nan, pool=pool.name, role=pool.role,
        drafted=drafted(serve), encodes=vision_of(deployment.model, serve) is not None,
        tiers=tiers_of_pool(pool), max_loras=serve.max_loras if serve.enable_lora else 0, replica=place.replica,
        group=pool.start + place.replica * serve.data_parallel_size if shard.data > 1 else -1,
    )


def _sleep(deployment: Deployment) -> tuple[float, float]:
    """The watts of a sleeping GPU, and the seconds without work after which it sleeps; infinite where it never does."""
    after, gpu = deployment.scenario.energy.sleep_after, deployment.gpu
    if after is None:
        return gpu.power.idle, inf
    if gpu.power.sleep is None:
        raise ConfigError("energy.sleep_after", f"{gpu.name} has no [power] sleep, the watts that it draws asleep;"
                                                " state them in a data file of your own, or leave this out")
    return gpu.power.sleep, after


_NO_CONTROL = Choice("none")


def _gateway(scenario: Scenario, router: Any, env: Horizon, log: Log) -> Gateway | None:
    """The gateway before *router*; None where nobody can be held or refused."""
    choice = scenario.flow_control or _NO_CONTROL
    if choice == _NO_CONTROL and getattr(router, "refusal", None) is None:
        return None
    control = plugin("cluster.flow_controls", choice)
    if hasattr(control, "aim"):
        control.aim(scenario.slo.ttft)
    check_signals(control, choice.name, scenario.signals, "flow_control")
    log.gated = True
    return Gateway(env, log, control, scenario.workload.retries, scenario.seed)


def _tell_measured(engines: Sequence[Any], *choosers: Any) -> None:
    """Tell those of *choosers* that want to know it how long the steps of *engines* take."""
    if asking := [chooser for chooser in choosers if hasattr(chooser, "measured")]:
        models = models_of(engines)
        for chooser in asking:
            chooser.measured(models)

"""From a fleet to engines and the cluster around them.

A deployment's scheduler, cache and stages become an engine's; a scenario's router becomes the cluster's, with the
signals that it goes by.  Whatever else there is, features bring (`ksim.simulation.features`).
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, nan
from typing import TYPE_CHECKING, Any, TypeVar, cast

import simpy
from attrs import evolve, field, fields_dict, frozen, has

from ksim.cluster.cluster import Clients, Cluster, RemoteReplica
from ksim.cluster.signals import check_signals, late_events, signals_of, watches
from ksim.cost.energy import Clock
from ksim.cost.step import Timer
from ksim.engine.engine import Engine
from ksim.engine.loop_times import Horizon
from ksim.engine.ranks import DataParallelGroup, Stages, WholeSteps
from ksim.flow.events import EngineBuilt
from ksim.flow.log import Log
from ksim.flow.request import BlockKeys, Request
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.kv.cache import Cache
from ksim.kv.cache.vllm import VllmCache
from ksim.network.flows import Flows
from ksim.network.network import FleetNetwork
from ksim.oracles import peak
from ksim.scenario.cache_layout import kept_layers
from ksim.scenario.defaults import Deployment
from ksim.scenario.features import load_feature
from ksim.scenario.sizing import limits
from ksim.scheduling.scheduler import Rules, mixed, scheduler_of
from ksim.simulation.features import Connection, KvMoves
from ksim.simulation.fleet import Fleet, splits
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.hardware import Gpu

if TYPE_CHECKING:
    from ksim.cluster.gateway import Gateway
    from ksim.engine.collective_flows import CollectiveFlows

T = TypeVar("T")

__all__ = ["build", "pair_router_of", "router_of"]


#: The eviction that vLLM's cache has built in.
VLLM = Choice("vllm")
#: How a prefill and a decode engine are chosen by default.
EACH_SIDE = Choice("each_side")


def router_of(fleet: Fleet, split: bool | None = None) -> Any:
    """What chooses an engine for each request; raises ConfigError if it needs signals that are turned off.

    Where requests of a model are *split*, by default those of any, there is a pair router in its place.
    """
    router = _routers_made(fleet, "cluster.routers", fleet.scenario.router)
    if not (fleet.splits if split is None else split):
        check_signals(router, fleet.scenario.router.name, fleet.scenario.signals)
    return router


def pair_router_of(fleet: Fleet, split: bool | None = None) -> Any:
    """What chooses two engines for each request; None where no engine prefills for others."""
    if not (fleet.splits if split is None else split):
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
          here: Container[int] | None = None, tells: bool = False) -> Clients:
    """Build the engines of *fleet* and the cluster around them, or that of each model that it serves.

    Engines that are not *here* run in other processes.  Caches of an engine that *tells* let anybody know what enters
    and leaves them.
    """
    fleet = Fleet.of(fleet)
    scenario = fleet.scenario
    cuts = any(scenario.lifecycle_of(name).termination_grace_period is not None for name in scenario.pools)
    if scenario.workload.may_abort or cuts:
        fleet = fleet.stepping()
    moves = _first(feature.moves(fleet.pools, fleet.links, env, log) for feature in fleet.features)
    sites = {model: _Site.of(fleet, pools, env, log, moves) for model, pools in fleet.models.items()}
    assemblies = {model: site.assembly(here, tells) for model, site in sites.items()}
    built = [(pool, [*assemblies[pool.model].engines(pool)]) for pool in fleet.pools]
    most, log.mixed = fleet.scenario.workload.max_concurrency, bool(fleet.scenario.workload.mix) or len(sites) > 1
    if len(sites) == 1:
        (site,) = sites.values()
        return site.cluster([engine for _, engines in built for engine in engines], most, on_end, site.prepare)
    from ksim.cluster.models import ClusterOfModels  # for fleets of several alone

    clusters = {model: site.cluster([engine for pool, engines in built if pool.model == model for engine in engines])
                for model, site in sites.items()}
    return ClusterOfModels(env, [engine for _, engines in built for engine in engines], log, clusters,
                           usual=fleet.scenario.model, max_concurrency=most, on_end=on_end,
                           prepares={model: site.prepare for model, site in sites.items() if site.prepare})


@frozen
class _Site:
    """Where the requests for one model are served: the pools of a fleet that do so, and what is before them."""

    fleet: Fleet
    pools: Sequence[EnginePool]
    env: Horizon
    log: Log
    moves: KvMoves | None
    router: Any
    pair_router: Any
    gateway: "Gateway | None"

    @classmethod
    def of(cls, fleet: Fleet, pools: Sequence[EnginePool], env: Horizon, log: Log, moves: KvMoves | None) -> "_Site":
        router, pair_router = router_of(fleet, splits(pools)), pair_router_of(fleet, splits(pools))
        gateway = _first(feature.gateway(fleet.scenario, pair_router or router, env, log) for feature in fleet.features)
        return cls(fleet, pools, env, log, moves, router=router, pair_router=pair_router, gateway=gateway)

    def assembly(self, here: Container[int] | None, tells: bool) -> "_Assembly":
        """What builds its engines."""
        settings, chooser = self.fleet.scenario.signals, self.pair_router or self.router
        key, several = "pair_router" if self.pair_router else "router", sum(len(pool.places) for pool in self.pools) > 1
        signals = signals_of(self.gateway.sharing(chooser, key) if self.gateway else chooser, key)
        watched = (several or self.gateway is not None) and watches(signals, settings)
        return _Assembly(self.env, self.log, watched, here, tells or late_events(signals, settings), self.moves,
                         self.fleet)

    @property
    def prepare(self) -> Callable[[Request], Request] | None:
        """What makes of a request what the model sees, if anything does."""
        deployment = self.pools[0].deployment
        return _first(feature.preparation(deployment) for feature in deployment.features)

    def cluster(self, engines: Sequence[Engine | RemoteReplica], most: int | None = None,
                on_end: Callable[[], None] = lambda: None,
                prepare: Callable[[Request], Request] | None = None) -> Cluster:
        """The cluster of these *engines*, with at most so many requests in flight."""
        scenario = self.fleet.scenario
        _tell_measured(engines, self.pair_router or self.router, self.gateway and self.gateway.control)
        return Cluster(self.env, self.router, engines, self.log, most, on_end, pair_router=self.pair_router,
                       transfer_network=self.moves.transfers if self.moves else None, prepare=prepare,
                       signals=scenario.signals, seed=scenario.seed, gateway=self.gateway)


def _first(made: Iterable[T | None]) -> T | None:
    """What the first feature has *made* that makes such a thing."""
    return next((one for one in made if one is not None), None)


@frozen
class _Assembly:
    """Builds engines that are `here`, or all; a router looks at them if they are `watched`.

    If a cache `tells` what enters and leaves it, engines with blocks of one size number them alike.
    """

    env: Horizon
    log: Log
    watched: bool
    here: Container[int] | None
    tells: bool
    moves: KvMoves | None
    fleet: Fleet
    _keys: dict[int, BlockKeys] = field(factory=dict, init=False)

    def engines(self, pool: EnginePool) -> Iterator[Engine | RemoteReplica]:
        """The engines of *pool*; those of a replica that share experts are a group, which takes its steps together."""
        deployment, ranks = pool.deployment, pool.deployment.serve.data_parallel_size
        shared = deployment.shards[0].data > 1
        maker = _first(feature.ranks(pool, self.env, self.log, self._network) for feature in deployment.features)
        make, width = maker.group if maker else partial(DataParallelGroup, self.env), deployment.serve.drafted + 1
        groups = [make(ranks, width) if shared else None for _ in range(pool.replicas)]
        blocks, collective_flows = deployment.kv_blocks, dict[int, "CollectiveFlows | None"]()
        priced = dict[Hashable, list[Timer]]()
        for number, place in zip(pool.numbers, pool.places, strict=True):
            if self.here is None or number in self.here:
                key = place.replica if shared else number
                if key not in collective_flows:
                    collective_flows[key] = self._collective_flows(pool, place)
                timers = _timers(deployment, place, priced if shared else {})
                stages = (maker.stages(number, place, timers, collective_flows[key]) if maker else
                          _whole_steps(deployment, self.env))
                yield self._engine(pool, number, place, (self._cache(deployment, blocks), timers),
                                   (stages, groups[place.replica], collective_flows[key]))
            else:
                yield RemoteReplica(number, pool.role)

    def _cache(self, deployment: Deployment, blocks: int) -> Cache:
        size = deployment.serve.block_size
        assert size is not None, "settings are derived before engines are built"
        return _cache(deployment, blocks, self._keys.setdefault(size, BlockKeys(size)) if self.tells else None)

    def _network(self) -> FleetNetwork:
        """What moves between GPUs: the network of KV, if that moves."""
        links = self.fleet.links
        return self.moves.network if self.moves else FleetNetwork(self.env, links, Flows(self.env, links))

    def _collective_flows(self, pool: EnginePool, place: EnginePlace) -> "CollectiveFlows | None":
        return self.moves.collective_flows(pool, place) if self.moves and self.moves.transfers else None

    def _engine(self, pool: EnginePool, number: int, place: EnginePlace, own: tuple[Cache, Sequence[Timer]],
                joined: tuple[Stages, DataParallelGroup | None, "CollectiveFlows | None"]) -> Engine:
        deployment, serve, features = pool.deployment, pool.deployment.serve, pool.deployment.features
        cache, timers = own
        connection = self.moves.connection(pool, number, place, cache) if self.moves else Connection()
        rules = [rules for feature in features for rules in feature.rules(deployment)]
        scheduler = _scheduler(deployment, cache, [*rules, *connection.rules, *_rules_of(cache)])
        if connection.endpoint is not None:
            connection.endpoint.serve(scheduler)
        record = _record(pool, number, place, cache)
        self.log.engines.append(evolve(record, model=pool.model) if len(self.fleet.models) > 1 else record)
        common: dict[str, Any] = {
            "number": number, "env": self.env, "scheduler": scheduler, "log": self.log, "host": deployment.host,
            "timers": timers, "workers": serve.gpus,
            "governor": _first(feature.governor(deployment) for feature in features),
            "logprobs": _with_prompt_logprobs, "seed": deployment.scenario.seed, "role": pool.role,
            "gpus": pool.gpus(place), "connector": connection.worker, "endpoint": connection.endpoint}
        kind, more = _kind(*joined, deployment.skips, self.watched, common)
        for extension in (extension for feature in features for extension in feature.extensions(deployment)):
            if issubclass(kind, extension.of):
                kind, more = mixed(extension.kind, kind), {**more, **extension.fields}
        return kind(**common, **more)


def _kind(stages: Stages, group: DataParallelGroup | None, collective_flows: "CollectiveFlows | None", skips: bool,
          watched: bool, common: Mapping[str, Any]) -> tuple[type[Engine], dict[str, Any]]:
    """The kind of engine that these parts need, and the fields that it alone has.

    It goes ahead of the clock if it *skips*, and nothing else decides when its steps end: no other stage, no rank of a
    *group*, no governor.  A router may look at one that is *watched*.  Only the kind that is needed is imported.
    """
    if isinstance(stages, WholeSteps) and skips and not collective_flows and _is_alone(stages, group, common):
        fields = {"clock": stages.clocks[0] if stages.clocks else None, "watched": watched}
        if common["connector"]:
            from ksim.engine.connected_engine import ConnectedEngine
            return ConnectedEngine, fields
        from ksim.engine.lookahead_engine import LookaheadEngine
        return LookaheadEngine, fields
    from ksim.engine.event_engine import EventEngine
    more: dict[str, Any] = {"stages": stages, "group": group}
    if isinstance(stages, WholeSteps):
        governed = common["governor"] is not None and common["governor"].governor is not None
        if skips and not governed and all(timer.summarizes for timer in common["timers"]):
            from ksim.engine.stage_recorder import StageRecorder
            recorder = more["recorder"] = (group and group.recorder) or StageRecorder(common["log"])
            recorder.timers[common["number"]] = common["timers"]
            if group:
                group.recorder = recorder
        if collective_flows:
            collective_flows.enlist(stages)
            more["collective_flows"] = collective_flows
    return EventEngine, more


def _is_alone(stages: WholeSteps, group: DataParallelGroup | None, common: Mapping[str, Any]) -> bool:
    governor = common["governor"]
    return stages.stages == 1 and group is None and (governor is None or governor.governor is None)


def _with_prompt_logprobs(timer: Timer) -> Timer:
    """*timer* with the passes of log-probabilities of prompts, for which any request of a trace may ask first."""
    priced: Timer = load_feature("sampling").with_prompt_logprobs(timer)
    return priced


def _cache(deployment: Deployment, blocks: int, keys: BlockKeys | None) -> Cache:
    """A KV cache of *blocks* blocks, as the engine's settings describe it; with *keys*, it tells of each block.

    Only the kind that is needed is imported.
    """
    serve, layout = deployment.serve, deployment.layout
    choice = serve.eviction or Choice("vllm" if serve.prefix_cache == "vllm" else "lru")
    eviction = None if choice == VLLM else plugin("kv.cache.evictions", choice)
    assert serve.block_size is not None and serve.max_model_len is not None, "settings are derived before"
    if keys is not None and (serve.prefix_cache == "sglang" or not layout.plain):
        raise ConfigError("signals", "KV events of SGLang's cache, or of layers that keep different things, cannot be"
                                     " late or lost; leave out delay and loss, or name a router without kv_events")
    if not deployment.approximated:
        return cast("Cache", _radix_cache(deployment, blocks, plugin("kv.cache.evictions", choice)))
    own: Cache | None = _first(feature.cache(deployment, blocks, eviction, keys) for feature in deployment.features)
    if own is not None:
        return own
    caching, unhashed_first = bool(serve.enable_prefix_caching), deployment.version.unhashed_blocks_first
    if serve.prefix_cache == "sglang":
        from ksim.kv.cache.sglang import SglangCache
        return SglangCache(blocks * serve.block_size, caching, plugin("kv.cache.evictions", choice))
    if not layout.plain:
        from ksim.kv.cache.hybrid import HybridCache
        return HybridCache(blocks, [group.group for group in layout.groups], caching, layout.in_flight,
                           serve.max_model_len, unhashed_first=unhashed_first)
    if eviction is not None or keys is not None:
        from ksim.kv.cache.block_cache import BlockCache
        return BlockCache(blocks, serve.block_size, caching, eviction, unhashed_first, keys)
    return VllmCache(blocks, serve.block_size, caching, unhashed_first)


def _scheduler(deployment: Deployment, cache: Cache, rules: Sequence[Rules]) -> Any:
    """The scheduler of the jobs whose KV is in *cache*; only the kind that is needed is imported."""
    serve, version = deployment.serve, deployment.version
    if not deployment.approximated:
        return _sglang_scheduler(deployment, cache, rules)
    policy = serve.scheduling_policy
    if version.scheduler == "sglang" and policy == Choice("fcfs"):
        policy = Choice("longest_prefix_first" if serve.sglang and serve.sglang.schedule_policy == "lpm" else
                        "prefill_first")
    parts = (limits(serve, version), plugin("scheduling.policies", policy), cache,
             plugin("scheduling.admissions", serve.admission))
    return scheduler_of(parts, rules)


def _sglang_scheduler(deployment: Deployment, cache: Any, rules: Sequence[Rules]) -> Any:
    """The scheduler of one rank of an engine of SGLang's, with its own settings; only its kind is imported."""
    from ksim.scheduling.sglang.limits import SglangLimits
    serve = deployment.serve
    assert serve.sglang and serve.block_size, "settings are derived before engines are built"
    rank = serve.sglang.on_rank(serve.data_parallel_size)
    shared = {name: getattr(rank, name) for name in fields_dict(SglangLimits) if hasattr(rank, name)}
    own = {"max_running_requests": serve.max_num_seqs, "random_seed": deployment.scenario.seed,
           "max_logprobs": serve.max_logprobs}
    parts = (SglangLimits(**{**shared, **own}), plugin("scheduling.policies", serve.scheduling_policy), cache)
    side = next((rule for rule in rules if rule.fields.keys() & {"send", "begin"}), None)
    if side is not None:
        return side.kind(*parts, **side.fields)
    speculation = next((rule.fields["speculation"] for rule in rules if "speculation" in rule.fields), None)
    if speculation is None and not _window(deployment):
        from ksim.scheduling.sglang.scheduler import SglangScheduler
        return SglangScheduler(*parts)
    from ksim.scheduling.sglang import drafts, windows
    if speculation is None:
        return windows.SglangWindowScheduler(*parts)
    slots = drafts.draft_slots(speculation.k, 1, speculation.k + 1, serve.block_size)
    kind = windows.SglangWindowDraftScheduler if _window(deployment) else drafts.SglangDraftScheduler
    return kind(*parts, speculation=speculation, slots=slots)


def _window(deployment: Deployment) -> int:
    """The tokens seen by layers that have a pool of their own in SGLang's cache; 0 where none have."""
    own = deployment.serve.sglang
    if own is None or own.disable_hybrid_swa_memory:
        return 0
    return max((layer.window for shard in deployment.shards
                for layer in kept_layers(deployment.model, shard, deployment.gpu)), default=0)


def _radix_cache(deployment: Deployment, pages: int, eviction: Any) -> Any:
    """SGLang's cache of so many *pages*, with a pool for window layers if there are any; its scheduler asks other
    things of it than vLLM's."""
    serve = deployment.serve
    assert serve.sglang and serve.block_size, "settings are derived before engines are built"
    plain = (pages, serve.block_size, bool(serve.enable_prefix_caching), eviction, int(serve.drafted > 0))
    if not _window(deployment):
        from ksim.kv.cache.radix import RadixCache
        return RadixCache(*plain)
    from ksim.kv.cache.window_radix import WindowRadixCache
    assert serve.sglang.swa_full_tokens_ratio, "settings are derived before engines are built"
    return WindowRadixCache(*plain, window=_window(deployment),
                            window_capacity=int(pages * serve.sglang.swa_full_tokens_ratio))


def _rules_of(cache: Cache) -> Sequence[Rules]:
    """The rules that a scheduler needs for *cache*."""
    if not hasattr(cache, "groups"):
        return ()
    from ksim.scheduling.group_rules import grouping
    return grouping()


def _known_clock(gpu: Gpu) -> float:
    clocks = gpu.power.clocks
    return nan if clocks is None else clocks.known or clocks.boost


def _timers(deployment: Deployment, place: EnginePlace, priced: dict[Hashable, list[Timer]]) -> list[Timer]:
    """The timers of the engine at *place*, with the plans of those of its replica whose GPUs have the same links.

    Replicas share none: in a process of its own, each prices what it does alone, and rounds alike.
    """
    timers: list[Any] = deployment.timers(place.first, place.firsts)
    key = (place.replica, *(deployment.patterns(timer.groups) for timer in timers))
    known = priced.setdefault(key, timers)
    for timer, other in zip(timers, known, strict=True):
        if timer is not other:
            timer.plan_as(other)
    return timers


def _whole_steps(deployment: Deployment, env: simpy.Environment) -> WholeSteps:
    power, stages = deployment.gpu.power, len(deployment.shards)
    return WholeSteps(env, stages, [Clock(power, power.clocks) for _ in range(stages)] if power.clocks else [])


def _record(pool: EnginePool, number: int, place: EnginePlace, cache: Cache) -> EngineBuilt:
    deployment = pool.deployment
    gpu, serve, shard = deployment.gpu, deployment.serve, deployment.shards[0]
    sleep_watts, sleep_after = _sleep(deployment)
    facts = {key: value for feature in deployment.features for key, value in feature.facts(pool, place).items()}
    built = EngineBuilt(
        engine=number, name=pool.engine_name(number), gpu=gpu.name, ranks=serve.tensor_parallel_size,
        stages=serve.pipeline_parallel_size, kv_blocks=cache.capacity, block_tokens=cache.block_tokens,
        peak_flops=peak(gpu, serve.precision.activations), peak_bandwidth=gpu.bandwidth,
        static_watts=gpu.power.idle, memory=gpu.memory, weights=deployment.model.weights(shard),
        sleep_watts=sleep_watts, sleep_after=sleep_after, limit_watts=deployment.scenario.power.cap or gpu.power.limit,
        reach=gpu.power.reach, known_clock=_known_clock(gpu),
        least_clock=gpu.power.clocks.least if gpu.power.clocks else nan, pool=pool.name, role=pool.role,
        replica=place.replica,
        group=pool.start + place.replica * serve.data_parallel_size if shard.data > 1 else -1)
    return evolve(built, **facts)


def _sleep(deployment: Deployment) -> tuple[float, float]:
    """The watts of a sleeping GPU, and the seconds without work after which it sleeps; infinite where it never does."""
    after, gpu = deployment.scenario.energy.sleep_after, deployment.gpu
    if after is None:
        return gpu.power.idle, inf
    if gpu.power.sleep is None:
        raise ConfigError("energy.sleep_after", f"{gpu.name} has no [power] sleep, the watts that it draws asleep;"
                                                " state them in a data file of your own, or leave this out")
    return gpu.power.sleep, after


def _tell_measured(engines: Sequence[Any], *choosers: Any) -> None:
    """Tell those of *choosers* that want to know it how long the steps of *engines* take."""
    if asking := [chooser for chooser in choosers if getattr(chooser, "measured", None)]:
        from ksim.cluster.forecast import models_of
        models = models_of(engines)
        for chooser in asking:
            chooser.measured(models)

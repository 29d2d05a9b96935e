"""Autoscaling: pools whose replicas start and go while the fleet serves, as autoscalers decide."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from math import inf
from typing import Any

from attrs import define, evolve, field, frozen

from ksim.autoscaling import EngineLimits, PoolView
from ksim.autoscaling.kubernetes import DisruptionBudget, Termination
from ksim.cluster.cluster import Cluster
from ksim.cluster.gateway import Attempt, Gateway
from ksim.cluster.replicas import GONE, READY, WARM, Drains, Replica, ScaledPool
from ksim.cluster.scaler import Scaler, Tally
from ksim.cluster.signals import View
from ksim.engine.loop_times import Horizon
from ksim.flow.events import CUT_OFF, UNAVAILABLE, EngineBuilt, Failed
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.network.flows import Flows
from ksim.network.links import Links
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.scenario.startup import engine_load, startup_of
from ksim.simulation.features import RunningFleet, WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.pools import Lifecycle, NodeDrain, PoolSettings
from ksim.specs.startup import Startup, StartupPart

__all__ = ["FEATURE"]

#: The parts of a start that a node takes once.
_MACHINE = ("node", "image")
#: Paths that all starts of a fleet share, and those that the starts of a node do.
_OF_FLEET, _OF_NODE = ("registry", "hub", "network"), ("disk", "page_cache")


@frozen
class _Paths:
    """The links on the ways to images and weights, each as fast as it is for one engine alone."""

    startup: Startup
    nodes: int

    @property
    def capacities(self) -> Sequence[float]:
        rates = self.startup.paths
        return [getattr(rates, name) for name in (*_OF_FLEET, *_OF_NODE * self.nodes)]

    def link(self, path: str, node: int) -> int | None:
        """The number of the link to a *node* that is shared on *path*; None where each GPU has its own."""
        if path in _OF_FLEET:
            return _OF_FLEET.index(path)
        return len(_OF_FLEET) + node * len(_OF_NODE) + _OF_NODE.index(path) if path in _OF_NODE else None


def _waking(choice: str | Choice) -> Startup:
    """How engines wake that a start by *choice* has made: their node and image are there, and where `ready` is measured
    of whole starts, it is that of the file."""
    startup = startup_of(choice)
    if startup.mode == "measured" and isinstance(choice, Choice):
        others = {key: value for key, value in choice.options.items() if key != "ready"}
        startup = startup_of(evolve(choice, options=others))
    return evolve(startup, node=0.0, image="on_node")


@define(eq=False)
class _Node:
    """A node, on which so many `replicas` are; with `came` it has come, and the image with it; it was `left` last."""

    came: Any = None
    replicas: int = 0
    left: float = inf


@frozen
class _Starts:
    """How the engines of a fleet start: part after part, with bytes that share the ways to them."""

    env: Horizon
    paths: _Paths
    flows: Flows
    nodes: Sequence[_Node]
    #: How warm replicas wake, but for the mode.
    waking: Startup
    #: As `_first_nodes` says.
    first_nodes: Mapping[int, int]

    @classmethod
    def of(cls, env: Horizon, choice: str | Choice, fleet: Sequence[EnginePool]) -> "_Starts":
        paths = _Paths(startup_of(choice), _node_count(fleet))
        nodes = [_Node() for _ in range(paths.nodes)]
        return cls(env, paths, Flows(env, paths), nodes, _waking(choice), _first_nodes(fleet))

    def start(self, deployment: Deployment, nodes: Sequence[int], all_nodes: Iterable[int]) -> Iterator[Any]:
        """The start of a replica of *deployment* whose engines start side by side, on *all_nodes*, and first on these
        *nodes*: what to wait for."""
        parts = self.paths.startup.parts(engine_load(deployment))
        machine = [part for part in parts if part.name in _MACHINE]
        if machine:
            yield self.env.all_of([self._came(node, machine) for node in sorted(all_nodes)])
        yield from self._pass(parts, nodes)

    def wake(self, deployment: Deployment, nodes: Sequence[int], mode: str) -> Iterator[Any]:
        """The same of a replica that sleeps in this *mode*."""
        return self._pass(evolve(self.waking, mode=mode).parts(engine_load(deployment)), nodes)

    def fall_asleep(self, deployment: Deployment, nodes: Sequence[int], mode: str) -> Iterator[Any]:
        """The same of one that falls asleep."""
        return self._pass(evolve(self.waking, mode=mode).sleep(engine_load(deployment)), nodes)

    def _pass(self, parts: Iterable[StartupPart], nodes: Sequence[int]) -> Iterator[Any]:
        return (self._wait(part, nodes) for part in parts if part.name not in _MACHINE)

    def _wait(self, part: StartupPart, nodes: Sequence[int]) -> Any:
        """Until *part* is over on these *nodes*, for an engine on each."""
        links = [self.paths.link(part.path, node) for node in nodes] if part.bytes else []
        flows = [self.flows.start(part.bytes, [link]).done for link in links if link is not None]
        return self.env.all_of(flows) if flows else self.env.timeout(part.seconds)

    def _came(self, number: int, machine: Sequence[StartupPart]) -> Any:
        """When a node has come, and the image is there; unless it comes already, it comes now."""
        node = self.nodes[number]
        if node.came is None:
            node.came = self.env.process(self._prepare(machine, number))
        return node.came

    def _prepare(self, machine: Sequence[StartupPart], node: int) -> Generator[Any, Any, None]:
        for part in machine:
            yield self._wait(part, [node])

    def name_nodes(self, fleet: Sequence[EnginePool], replicas: Mapping[int, tuple[ScaledPool, Replica]],
                   engines: list[EngineBuilt]) -> None:
        """Write down the nodes of *engines*, by their numbers, that come and go with these *replicas*."""
        startup, come = self.paths.startup, frozenset().union(*(one.nodes for _, one in replicas.values()))
        for pool in fleet if startup.nodes_come else ():
            for number, place in zip(pool.numbers, pool.places, strict=True):
                nodes = _nodes(pool, place, self.first_nodes[pool.offset])
                if come.intersection(nodes):
                    engines[number] = evolve(engines[number], nodes=tuple(nodes), node_idle=startup.node_idle,
                                             node_gpus=pool.deployment.system.gpus_per_node)

    def changed(self, replica: Replica) -> None:
        """Take note that *replica* has come to its nodes or gone from them; at the start of the run, they are there."""
        before = replica.life[-2][1] if len(replica.life) > 1 else GONE
        for number in replica.nodes if (before == GONE) != (replica.state == GONE) else ():
            node, startup, now = self.nodes[number], self.paths.startup, self.env.now
            if replica.state == GONE:
                node.replicas -= 1
                node.left = now
                continue
            if not node.replicas and startup.nodes_come and now - node.left >= startup.node_idle:
                node.came = None
            node.replicas += 1
            if len(replica.life) == 1:
                node.came = node.came or self.env.timeout(0.0)


@define(eq=False)
class _UnderWay:
    """A request that some `replicas` have, what is called at its end, and how often it has moved from others.

    It is what is left of the `whole` one, which its client sent after so many `retries`.
    """

    request: Request
    replicas: Sequence[tuple[ScaledPool, Replica]]
    done: Callable[[], object]
    moves: int
    whole: Request
    retries: int

    def leave(self) -> None:
        for pool, replica in self.replicas:
            pool.leave(replica)


@define(eq=False)
class _Life:
    """The replicas of all pools of a running fleet, and which of them requests may go to."""

    cluster: Cluster
    tally: Tally
    starts: _Starts
    views: Mapping[int, View]
    replicas: Mapping[int, tuple[ScaledPool, Replica]]
    lifecycles: Mapping[str, Lifecycle]
    #: Those of other models, too, which may wait for GPUs.
    pools: Sequence[ScaledPool]
    under_way: dict[int, _UnderWay] = field(factory=dict, init=False)
    #: How often requests were cut off that wait for another replica, and the whole ones.
    moved: dict[int, tuple[int, Request]] = field(factory=dict, init=False)

    def changed(self, replica: Replica) -> None:
        """Offer routers the engines that are ready now, write down the life of others, and empty the caches of those
        that have started."""
        self.starts.changed(replica)
        engines = self.cluster.log.engines
        for number in replica.engines:
            engines[number] = evolve(engines[number], life=tuple(replica.life))
            if replica.state == READY and len(replica.life) > 1:
                self.views[number].engine.scheduler.cache.clear()
        self.cluster.offer([view for number, view in self.views.items() if self._ready(number)])
        if replica.state in (GONE, WARM):
            self._gone(replica)
        if replica.state == READY and self.cluster.gateway is not None:
            self.cluster.gateway.wake()

    def _gone(self, replica: Replica) -> None:
        """Tell the router that *replica* serves no more, and pools that may have waited for its GPUs: first those that
        need them."""
        if on_gone := getattr(self.cluster.pair_router or self.cluster.router, "on_gone", None):
            for number in replica.engines:
                on_gone(number)
        for pool in self.pools if replica.rivals else ():
            if pool.pending:
                pool.go_on()
        for pool in self.pools if replica.rivals and replica.state == GONE else ():
            if pool.cold > 0:
                pool.go_on()

    def _ready(self, engine: int) -> bool:
        return engine not in self.replicas or self.replicas[engine][1].state == READY

    def enter(self, request: Request, engines: Iterable[int], done: Callable[[], object]) -> Callable[[], object]:
        """Count *request* on the replicas of *engines* until it is *done*, or cut off."""
        entered = [self.replicas[engine] for engine in engines if engine in self.replicas]
        moves, whole = self.moved.pop(request.id, (0, request))
        here = _UnderWay(request, entered, done, moves, whole, self.gateway.retried)
        self.under_way[request.id] = here
        for pool, replica in entered:
            pool.enter(replica)

        def leave() -> None:
            del self.under_way[request.id]
            done()
            here.leave()

        return leave

    def leave(self, request: int) -> None:
        """Forget *request*, by its number, whose client has gone, wherever it is."""
        self.moved.pop(request, None)
        if (here := self.under_way.pop(request, None)) is not None:
            here.leave()

    @property
    def gateway(self) -> Gateway:
        assert self.cluster.gateway is not None, "fleets that are scaled have one"
        return self.cluster.gateway

    def cut_off(self, replica: Replica) -> None:
        """Take the requests of *replica* away; each goes on elsewhere, is sent again by its client, or fails.

        One with several sequences does not go on elsewhere.
        """
        cut = [one for one in self.under_way.values() if any(each is replica for _, each in one.replicas)]
        for one in cut:
            del self.under_way[one.request.id]
            alone = one.request.n == 1 and not one.request.beam_width
            if alone and one.moves < self.lifecycles[one.replicas[-1][0].name].migration_limit:
                self._move(one)
            elif self.gateway.may_come_again(one.retries):
                self._send_again(one)
            else:
                self._fail(one)

    def _move(self, one: _UnderWay) -> None:
        """Have another replica go on with a request where its user is."""
        request, (tokens, begun) = one.request, self._cut(one)
        most = None if request.max_tokens is None else request.max_tokens - tokens
        rest = evolve(request, prompt=request.prompt + tokens, output=request.output - tokens, max_tokens=most,
                      migrated=request.migrated or begun)
        self.moved[rest.id] = one.moves + 1, one.whole
        one.leave()
        self.gateway.resend(rest, one.done, one.retries)

    def _send_again(self, one: _UnderWay) -> None:
        """Have a client send its whole request again."""
        _, begun = self._cut(one, failed=True)
        whole = evolve(one.whole, migrated=one.request.migrated or begun)
        one.leave()
        self.gateway.come_again(Attempt(whole, one.done, timely=True, retries=one.retries), CUT_OFF, UNAVAILABLE)

    def _fail(self, one: _UnderWay) -> None:
        if not self.cluster.drop(one.request.id, self._engines(one), CUT_OFF):
            last = one.replicas[-1][1].engines[0]
            self.cluster.log.add(Failed(self.cluster.env.now, one.request.id, last, CUT_OFF))
        one.done()
        one.leave()

    def _engines(self, one: _UnderWay) -> list[Any]:
        return [self.views[number].engine for _, each in one.replicas for number in each.engines]

    def _cut(self, one: _UnderWay, failed: bool = False) -> tuple[int, bool]:
        """Take a request from its engines; return the tokens that its user has from there, and whether it had begun.

        If this attempt has *failed*, its client sends another.
        """
        cuts = [engine.cut_off(one.request.id) for engine in self._engines(one)]
        tokens = sum(each for each, _ in cuts)
        self.tally.lost(one.request.id, self.cluster.env.now, tokens, failed)
        return tokens, any(begun for _, begun in cuts)


def _first_nodes(fleet: Sequence[EnginePool]) -> dict[int, int]:
    """The number in the fleet of the first node of each of its systems, by the number of the first GPU of that."""
    systems = {pool.offset: pool.deployment.system for pool in fleet}
    found, count = dict[int, int](), 0
    for offset in sorted(systems):
        found[offset] = count
        count += systems[offset].nodes
    return found


def _node_count(fleet: Sequence[EnginePool]) -> int:
    return sum({pool.offset: pool.deployment.system.nodes for pool in fleet}.values())


def _nodes(pool: EnginePool, place: EnginePlace, first: int) -> range:
    """The nodes of the engine of *pool* at *place*, of all nodes of the fleet, in which its system's *first* one is."""
    each = pool.deployment.system.gpus_per_node
    gpus = pool.gpus(place)
    return range(first + (gpus[0] - pool.offset) // each, first + (gpus[-1] - pool.offset) // each + 1)


def _scaled(pool: EnginePool, settings: PoolSettings, starts: _Starts, life: _Life, cordoned: Set[int]) -> ScaledPool:
    """The replicas of *pool*, of which the first ones are ready, and the next ones warm, as its *settings* say."""
    width, first = pool.deployment.serve.data_parallel_size, starts.first_nodes[pool.offset]
    nodes = [_nodes(pool, place, first) for place in pool.places]
    places = [slice(begin, begin + width) for begin in range(0, len(pool.places), width)]
    begin = [READY] * settings.replicas + [WARM] * settings.warm + [GONE] * len(places)
    replicas = [Replica(number, tuple(pool.numbers[own]), [(0.0, begin[number])], frozenset().union(*nodes[own]))
                for number, own in enumerate(places)]

    def nodes_of(replica: Replica) -> list[int]:
        return [engine[0] for engine in nodes[places[replica.number]]]

    deployment, ends = pool.deployment, life.lifecycles[pool.name]
    mode = settings.warm_pool.mode if settings.warm_pool else ""
    grace = inf if ends.termination_grace_period is None else ends.termination_grace_period
    return ScaledPool(
        starts.env, pool.name, replicas,
        start_up=lambda replica: starts.start(deployment, nodes_of(replica), replica.nodes),
        changed=life.changed, cut_off=life.cut_off, cordoned=cordoned, termination=Termination(grace, ends.pre_stop),
        budget=ends.disruption_budget, warm=settings.warm,
        fall_asleep=lambda replica: starts.fall_asleep(deployment, nodes_of(replica), mode),
        wake_up=lambda replica: starts.wake(deployment, nodes_of(replica), mode))


def _find_rivals(fleet: Sequence[EnginePool], replicas: Mapping[int, tuple[ScaledPool, Replica]]) -> None:
    """Tell replicas that lie on the same GPUs of each other."""
    on: dict[int, dict[tuple[ScaledPool, Replica], None]] = {}
    for pool in fleet:
        for number, place in zip(pool.numbers, pool.places, strict=True):
            for gpu in pool.gpus(place) if number in replicas else ():
                on.setdefault(gpu, {})[replicas[number]] = None
    for together in on.values():
        for own in together if len(together) > 1 else ():
            own[1].rivals = [*dict.fromkeys([*own[1].rivals, *(one for one in together if one != own)])]


def _kind(pool: EnginePool) -> PoolView:
    """What autoscalers know of *pool* that does not change."""
    deployment, serve = pool.deployment, pool.deployment.serve
    tokens, sequences, longest = serve.max_num_batched_tokens, serve.max_num_seqs, serve.max_model_len
    assert tokens and sequences and longest, "settings are derived before engines are built"
    limits = EngineLimits(tokens, sequences, deployment.kv_blocks * deployment.block_tokens, longest)
    return PoolView(0, gpus=serve.gpus * serve.data_parallel_size, gpu=deployment.gpu.name, limits=limits)


class AutoscalingFeature(WiredFeature):
    """Pools with an autoscaler of their own, or of the scenario."""

    def tally(self) -> Tally:
        """What counts requests at the gateway."""
        return Tally()

    def check_fleet(self, scenario: Scenario, pools: Sequence[EnginePool], links: Links) -> None:
        if not scenario.pools:
            key = "autoscaler" if scenario.autoscaler else "drains" if scenario.drains else "lifecycle.rolling_update"
            raise ConfigError(key, "is about the replicas of pools, and the scenario has none; name them under pools")
        if scenario.energy.sleep_after is not None:
            raise ConfigError("energy.sleep_after", "puts GPUs to sleep that autoscalers give away; leave one out")
        for name in scenario.pools:
            choice = scenario.autoscaler_of(name)
            most = getattr(plugin("autoscaling", choice), "max_replicas", None) if choice else None
            if most is not None and most > scenario.pools[name].places:
                raise ConfigError(f"pools.{name}.max_replicas", f"is {scenario.pools[name].places}, and its autoscaler"
                                  f" {choice.name if choice else ''} may ask for {most}; set it to {most}")
        if scenario.drains:
            _check_drains(scenario.drains, pools)

    def coupling(self, pools: Sequence[EnginePool]) -> str:
        return "autoscalers look at all replicas"

    def begin(self, running: RunningFleet) -> None:
        starts = _Starts.of(running.env, running.scenario.startup, running.pools)
        pools = list[ScaledPool]()
        replicas = dict[int, tuple[ScaledPool, Replica]]()
        drains = Drains(pools, lambda: running.over)
        for cluster in running.cluster.parts:
            life = _scale(running, cluster, starts, drains)
            pools += dict.fromkeys(pool for pool, _ in life.replicas.values())
            replicas |= life.replicas
        _find_rivals(running.pools, replicas)
        starts.name_nodes(running.pools, replicas, running.cluster.parts[0].log.engines)
        drains.begin(running.scenario.drains, running.env)

    def run_remarks(self, pools: Sequence[EnginePool], summary: Callable[[], Mapping[str, Any]]) -> Iterator[str]:
        for pool in pools:
            scenario, sizes = pool.deployment.scenario, range(1, pool.replicas + 1)
            budget = scenario.lifecycle.disruption_budget
            if scenario.drains and budget is not None and not any(
                    DisruptionBudget(size, budget).evictions(size) for size in sizes):
                yield (f"pool {pool.name}: its disruption_budget never allows an eviction, so drains wait for ever: its"
                       " replicas stay on nodes that are cordoned")


def _check_drains(drains: Sequence[NodeDrain], fleet: Sequence[EnginePool]) -> None:
    """Raise ConfigError for nodes that *fleet* does not have, and for a pool that would never have a place again.

    A place that a replica of another pool may have, too, is not enough: that one may stay.
    """
    first, count = _first_nodes(fleet), _node_count(fleet)
    for number, drain in enumerate(drains):
        if max(drain.nodes) >= count:
            raise ConfigError(f"drains[{number}].nodes", f"has {max(drain.nodes)}, and the fleet has {count} nodes,"
                                                         " numbered from 0 on")
    lost = {node for drain in drains if drain.for_ is None for node in drain.nodes}
    gpus = Counter(gpu for pool in fleet for place in pool.places for gpu in pool.gpus(place))
    for pool in fleet if lost else ():
        bad = {place.replica for place in pool.places if lost & {*_nodes(pool, place, first[pool.offset])}
               or any(gpus[gpu] > 1 for gpu in pool.gpus(place))}
        if len(bad) == pool.replicas:
            raise ConfigError("drains", f"leaves pool {pool.name} no node for good, or none whose GPUs no other pool"
                                        " may have; say how long the drain is (for), or give the pool more max_replicas"
                                        " and nodes")


def _scale(running: RunningFleet, cluster: Cluster, starts: _Starts, drains: Drains) -> _Life:
    """Have autoscalers scale the pools whose engines are in *cluster*: those of one model."""
    scenario, views = running.scenario, {view.number: view for view in cluster.sight.views}
    ends = {name: scenario.lifecycle_of(name) for name in scenario.pools}
    own, replicas = dict[str, ScaledPool](), dict[int, tuple[ScaledPool, Replica]]()
    assert cluster.gateway is not None, "requests wait there while no replica is ready"
    tally: Tally = cluster.gateway.scaler
    tally.prefill = {number for number, view in views.items() if view.role == "prefill"}
    life = _Life(cluster, tally, starts, views, replicas, ends, drains.pools)
    fleet = [pool for pool in running.pools if pool.numbers[0] in views]
    for pool in fleet:
        if scenario.changes_size(pool.name):
            made = _scaled(pool, scenario.pools[pool.name], starts, life, drains.cordoned)
            own[pool.name] = made
            replicas |= {engine: (made, replica) for replica in made.replicas for engine in replica.engines}
    for name, made in own.items():
        for replica in made.replicas:
            life.changed(replica)
        if (update := ends[name].rolling_update).at is not None:
            running.env.call_at(update.at, partial(made.update, update.max_surge, update.max_unavailable))
    cluster.enter, cluster.leave = life.enter, life.leave
    make = partial(Scaler, cluster=cluster, tally=tally, views=views,
                   kinds={pool.name: _kind(pool) for pool in fleet})
    for choice, scaled in _asked(scenario, own):
        running.env.process(make(plugin("autoscaling", choice), scaled).run(lambda: running.over))
    return life


def _asked(scenario: Scenario, pools: Mapping[str, ScaledPool]) -> list[tuple[Choice, dict[str, ScaledPool]]]:
    """Each autoscaler, and the pools that it scales."""
    alone = [(choice, {name: pool}) for name, pool in pools.items()
             if (choice := scenario.pools[name].autoscaler) is not None]
    shared = {name: pool for name, pool in pools.items() if scenario.autoscaler and not scenario.pools[name].autoscaler}
    return [*alone, *([(scenario.autoscaler, shared)] if shared and scenario.autoscaler else [])]


FEATURE = AutoscalingFeature()

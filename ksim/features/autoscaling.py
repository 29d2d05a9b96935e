"""Autoscaling: pools whose replicas start and go while the fleet serves, as autoscalers decide."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import define, evolve, frozen

from ksim.cluster.cluster import Cluster
from ksim.cluster.replicas import GONE, READY, Replica, ScaledPool
from ksim.cluster.scaler import Scaler, Tally
from ksim.cluster.signals import View
from ksim.engine.loop_times import Horizon
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
from ksim.specs.startup import Startup

__all__ = ["FEATURE"]


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


@frozen
class _Starts:
    """How the engines of a fleet start: part after part, with bytes that share the ways to them."""

    env: Horizon
    paths: _Paths
    flows: Flows

    @classmethod
    def of(cls, env: Horizon, choice: str | Choice, nodes: int) -> "_Starts":
        paths = _Paths(startup_of(choice), nodes)
        return cls(env, paths, Flows(env, paths))

    def start(self, deployment: Deployment, nodes: Sequence[int]) -> Generator[Any, Any, None]:
        """The process of a replica of *deployment* whose engines lie on these *nodes* and start side by side."""
        for part in self.paths.startup.parts(engine_load(deployment)):
            links = [self.paths.link(part.path, node) for node in nodes] if part.bytes else []
            flows = [self.flows.start(part.bytes, [link]).done for link in links if link is not None]
            yield self.env.all_of(flows) if flows else self.env.timeout(part.seconds)


@define(eq=False)
class _Life:
    """The replicas of all pools of a running fleet, and which of them requests may go to."""

    cluster: Cluster
    views: Mapping[int, View]
    replicas: Mapping[int, tuple[ScaledPool, Replica]]

    def changed(self, replica: Replica) -> None:
        """Offer routers the engines that are ready now, write down the life of others, and empty the caches of those
        that are gone."""
        engines = self.cluster.log.engines
        for number in replica.engines:
            engines[number] = evolve(engines[number], life=tuple(replica.life))
            if replica.state == GONE:
                _empty(self.views[number].engine)
        self.cluster.offer([view for number, view in self.views.items() if self._ready(number)])
        if replica.state == READY and self.cluster.gateway is not None:
            self.cluster.gateway.wake()

    def _ready(self, engine: int) -> bool:
        return engine not in self.replicas or self.replicas[engine][1].state == READY

    def enter(self, engines: Iterable[int], done: Callable[[], object]) -> Callable[[], object]:
        """Count a request on the replicas of *engines* until it is *done*."""
        entered = [self.replicas[engine] for engine in engines if engine in self.replicas]
        for pool, replica in entered:
            pool.enter(replica)

        def leave() -> None:
            done()
            for pool, replica in entered:
                pool.leave(replica)

        return leave


def _empty(engine: Any) -> None:
    """Take away what the cache of *engine*, which has no requests, has kept: a process that starts has none."""
    cache = engine.scheduler.cache
    if hasattr(cache, "make_room"):
        cache.make_room(cache.capacity * cache.block_tokens)
        return
    everything = Request(-1, 0.0, cache.capacity * cache.block_tokens, 1)
    table = cache.block_table(everything)
    cache.attach_prefix(table, cache.find_prefix(table, 1))
    cache.allocate(table, everything.prompt)
    cache.free(table, everything.prompt)


def _node(pool: EnginePool, place: EnginePlace) -> int:
    """The node of the engine of *pool* at *place*, of all nodes of the fleet."""
    return (pool.offset + place.first) // pool.deployment.system.gpus_per_node


def _last_node(pool: EnginePool) -> int:
    return max(_node(pool, place) for place in pool.places)


def _scaled(pool: EnginePool, ready: int, starts: _Starts, life: _Life) -> ScaledPool:
    """The replicas of *pool*, of which the first ones are *ready*."""
    width = pool.deployment.serve.data_parallel_size
    engines = [range(first, first + width) for first in range(0, len(pool.places), width)]
    replicas = [Replica(number, tuple(pool.numbers[place] for place in places),
                        [(0.0, READY if number < ready else GONE)]) for number, places in enumerate(engines)]

    def start_up(replica: Replica) -> Generator[Any, Any, None]:
        nodes = [_node(pool, pool.places[place]) for place in engines[replica.number]]
        return starts.start(pool.deployment, nodes)

    return ScaledPool(starts.env, pool.name, replicas, start_up, life.changed)


class AutoscalingFeature(WiredFeature):
    """Pools with an autoscaler of their own, or of the scenario."""

    def tally(self) -> Tally:
        """What counts requests at the gateway."""
        return Tally()

    def check_fleet(self, scenario: Scenario, pools: Sequence[EnginePool], links: Links) -> None:
        if not scenario.pools:
            raise ConfigError("autoscaler", "scales pools, and the scenario has none; name them under pools")
        if scenario.energy.sleep_after is not None:
            raise ConfigError("energy.sleep_after", "puts GPUs to sleep that autoscalers give away; leave one out")
        for name in scenario.pools:
            choice = scenario.autoscaler_of(name)
            most = getattr(plugin("autoscaling", choice), "max_replicas", None) if choice else None
            if most is not None and most > scenario.pools[name].places:
                raise ConfigError(f"pools.{name}.max_replicas", f"is {scenario.pools[name].places}, and its autoscaler"
                                  f" {choice.name if choice else ''} may ask for {most}; set it to {most}")

    def coupling(self, pools: Sequence[EnginePool]) -> str:
        return "autoscalers look at all replicas"

    def begin(self, running: RunningFleet) -> None:
        starts = _Starts.of(running.env, running.scenario.startup, 1 + max(map(_last_node, running.pools)))
        for cluster in running.cluster.parts:
            _scale(running, cluster, starts)


def _scale(running: RunningFleet, cluster: Cluster, starts: _Starts) -> None:
    """Have autoscalers scale the pools whose engines are in *cluster*: those of one model."""
    scenario, views = running.scenario, {view.number: view for view in cluster.sight.views}
    pools, replicas = dict[str, ScaledPool](), dict[int, tuple[ScaledPool, Replica]]()
    life, fleet = _Life(cluster, views, replicas), [pool for pool in running.pools if pool.numbers[0] in views]
    for pool in fleet:
        if scenario.autoscaler_of(pool.name):
            made = _scaled(pool, scenario.pools[pool.name].replicas, starts, life)
            pools[pool.name] = made
            replicas |= {engine: (made, replica) for replica in made.replicas for engine in replica.engines}
    for made in pools.values():
        for replica in made.replicas:
            life.changed(replica)
    cluster.enter = life.enter
    assert cluster.gateway is not None, "requests wait there while no replica is ready"
    make = partial(Scaler, cluster=cluster, tally=cluster.gateway.scaler, views=views,
                   gpus={pool.name: pool.deployment.serve.gpus * pool.deployment.serve.data_parallel_size
                         for pool in fleet})
    for choice, own in _asked(scenario, pools):
        running.env.process(make(plugin("autoscaling", choice), own).run(lambda: running.over))


def _asked(scenario: Scenario, pools: Mapping[str, ScaledPool]) -> list[tuple[Choice, dict[str, ScaledPool]]]:
    """Each autoscaler, and the pools that it scales."""
    alone = [(choice, {name: pool}) for name, pool in pools.items()
             if (choice := scenario.pools[name].autoscaler) is not None]
    shared = {name: pool for name, pool in pools.items() if scenario.pools[name].autoscaler is None}
    return [*alone, *([(scenario.autoscaler, shared)] if shared and scenario.autoscaler else [])]


FEATURE = AutoscalingFeature()

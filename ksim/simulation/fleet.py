"""A fleet: a scenario's pools, each with its deployment, and the GPUs on which their engines are placed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.network.links import Links
from ksim.network.routes import Machines
from ksim.results.numbers import CostRates
from ksim.results.steps import Ints
from ksim.scenario.defaults import Deployment
from ksim.scenario.features import load_feature
from ksim.scenario.scenario import Scenario, alike, beside
from ksim.scenario.sizing import pack
from ksim.simulation.features import WiredFeature
from ksim.simulation.pool import EnginePlace, EnginePool, named
from ksim.specs.hardware import System
from ksim.specs.settings import EngineSettings


@frozen
class Fleet:
    """Pools of engines on one network.  `scenario` has every setting filled in that the scenario left open.

    GPUs are numbered through all `machines`, node by node.  A scenario without pools is a fleet of one pool without a
    name.
    """

    scenario: Scenario
    pools: tuple[EnginePool, ...]
    machines: tuple[Machines, ...]

    @classmethod
    def of(cls, scenario: "Scenario | Deployment | Fleet") -> "Fleet":
        """Look up all that *scenario* names, derive what it leaves open, and place its engines.

        No request of its workload is read.  Raises KsimError for a scenario that cannot be deployed, and DoesNotFit
        where nodes have too few GPUs.
        """
        if isinstance(scenario, Fleet):
            return scenario
        if isinstance(scenario, Scenario) and scenario.pools:
            return _of_pools(scenario)
        return _of_one(Deployment.of(scenario) if isinstance(scenario, Scenario) else scenario)

    @classmethod
    def _joined(cls, scenario: Scenario, pools: Iterable[EnginePool], machines: Iterable[Machines]) -> "Fleet":
        """The fleet of these *pools*; raises ConfigError where they cannot send each other what they must."""
        pools = tuple(pools)
        disks = any(feature.uses_disks(pools) for feature in _features(pools))
        machines = tuple(evolve(part, disks=disks) for part in machines)
        fleet = cls(scenario, pools, machines)
        _check_router(scenario, {model: splits(pools) for model, pools in fleet.models.items()})
        for feature in fleet.features:
            feature.check_fleet(scenario, pools, fleet.links)
        return fleet

    @property
    def features(self) -> list[WiredFeature]:
        """What its engines have beside plain ones, each once."""
        return _features(self.pools)

    @cached_property
    def links(self) -> Links:
        """The links of all GPUs, which what moves shares."""
        return Links.of(self.machines)

    @property
    def engines(self) -> int:
        """How many engines there are."""
        return sum(len(pool.places) for pool in self.pools)

    @property
    def models(self) -> dict[str, list[EnginePool]]:
        """The pools of each model that is served, by its name in the scenario."""
        found: dict[str, list[EnginePool]] = {}
        for pool in self.pools:
            found.setdefault(pool.model, []).append(pool)
        return found

    @property
    def splits(self) -> bool:
        """Whether requests may be prefilled by one engine and decoded by another."""
        return any(map(splits, self.models.values()))

    @property
    def deployments(self) -> list[Deployment]:
        return [pool.deployment for pool in self.pools]

    @property
    def gpu_names(self) -> str:
        """The catalogue names of its GPUs, or paths of their files."""
        return ", ".join(dict.fromkeys(str(deployment.scenario.gpu) for deployment in self.deployments))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What users should know of the GPUs."""
        return tuple(dict.fromkeys(remark for deployment in self.deployments for remark in deployment.remarks))

    @property
    def rates(self) -> CostRates:
        """What a joule and a GPU-second of the first pool emit and cost."""
        return self.pools[0].deployment.rates

    @property
    def pool_rates(self) -> dict[str, CostRates]:
        """The same of each pool that has a name."""
        return {pool.name: pool.deployment.rates for pool in self.pools if pool.name}

    def check_run(self) -> None:
        """Raise ConfigError for a run that would not be as the scenario asks, which a look at typical steps tells."""
        for feature in self.features:
            feature.check_run(self.pools)

    def stepping(self) -> "Fleet":
        """The fleet with engines that take their steps when it is time, none ahead of the clock."""
        return evolve(self, pools=tuple(evolve(pool, deployment=evolve(pool.deployment, skips=False))
                                        for pool in self.pools))

    def check_memory(self) -> None:
        """Raise DoesNotFit where an engine's weights and the KV cache of one whole sequence exceed its memory."""
        for pool in self.pools:
            named(pool.name, pool.deployment.check_memory)


def splits(pools: Iterable[EnginePool]) -> bool:
    """Whether requests for the model of these *pools* may be prefilled by one engine and decoded by another."""
    return any(pool.role == "prefill" for pool in pools)


def _features(pools: Sequence[EnginePool]) -> list[WiredFeature]:
    return [*dict.fromkeys(feature for pool in pools for feature in pool.deployment.features)]


def _of_one(deployment: Deployment) -> Fleet:
    """The fleet of a scenario without pools: engines lie one after the other."""
    serve = deployment.serve
    firsts = tuple(range(0, serve.gpus * serve.data_parallel_size, serve.gpus))
    pool = EnginePool("", "both", deployment, 1, 0, tuple(EnginePlace(0, first, firsts) for first in firsts))
    return Fleet._joined(deployment.scenario, [pool], [Machines(deployment.system, deployment.gpu)])


def _check_roles(scenario: Scenario) -> None:
    """Raise ConfigError for a role that needs engines of another role, where there are none of its model."""
    for name, pool in scenario.pools.items():
        model = scenario.model_of(name)
        roles = {other.role for key, other in scenario.pools.items() if scenario.model_of(key) == model}
        if pool.role == "prefill" and roles == {"prefill"}:
            raise ConfigError(f"pools.{name}.role", "is 'prefill', and no pool decodes; add one of role 'decode' or"
                                                    " 'both'")
        if pool.role == "decode" and "prefill" not in roles:
            raise ConfigError(f"pools.{name}.role", "is 'decode', and no pool prefills for it; add one of role"
                                                    " 'prefill', or set 'both'")


def _check_router(scenario: Scenario, split: Mapping[str, bool]) -> None:
    """Raise ConfigError for a router that no request would meet, as those of each model are *split* or are not."""
    if scenario.pair_router is not None and not any(split.values()):
        raise ConfigError("pair_router", "chooses prefill and decode engines, and no pool has the role 'prefill'; leave"
                                         " it out, and name a router")
    if all(split.values()) and scenario.router != Choice("round_robin"):
        name = scenario.router.name
        raise ConfigError("router", f"is {name!r}, and a pair_router chooses the engines of a fleet with a pool of role"
                                    f" 'prefill'; set pair_router = {{name = 'each_side', prefill = {name!r}, decode ="
                                    f" {name!r}}}")


def _of_pools(scenario: Scenario) -> Fleet:
    _check_roles(scenario)
    deployments = {name: named(name, partial(_deployment, scenario, name)) for name in scenario.pools}
    sharing: dict[Any, list[str]] = {}  # pools by the nodes that they lie on
    for name, deployment in deployments.items():
        own = name if scenario.pools[name].nodes is not None else None
        sharing.setdefault((deployment.scenario.gpu, deployment.scenario.system, own), []).append(name)
    pools, offset = dict[str, EnginePool](), 0
    for names in sharing.values():
        system, starts = deployments[names[0]].system, _placed(scenario, {name: deployments[name] for name in names})
        for name in names:
            pools[name] = _pool(scenario, name, deployments[name], starts[name], offset)
        offset += system.gpus
    machines = [Machines(deployments[names[0]].system, deployments[names[0]].gpu) for names in sharing.values()]
    ordered = [pools[name] for name in scenario.pools]
    return Fleet._joined(_resolved(scenario, deployments), _numbered(ordered), machines)


def _deployment(scenario: Scenario, name: str) -> Deployment:
    """The deployment of the pool *name*, which has a connector if requests of its model are split."""
    alone = scenario.of_pool(name)
    if any(pool.role == "prefill" and scenario.model_of(key) == alone.model for key, pool in scenario.pools.items()):
        config = load_feature("connectors").completed(alone.serve.kv_transfer_config, scenario.pools[name].role)
        return Deployment.of(evolve(alone, serve=evolve(alone.serve, kv_transfer_config=config)))
    return Deployment.of(alone)


def _placed(scenario: Scenario, deployments: Mapping[str, Deployment]) -> dict[str, list[int]]:
    """The first GPU of each engine of these pools, which lie on the nodes of one system."""
    sizes = {name: [deployment.serve.gpus] * (deployment.serve.data_parallel_size * scenario.pools[name].places)
             for name, deployment in deployments.items()}
    system = next(iter(deployments.values())).system
    units = {name: unit(deployment, system.gpus_per_node) for name, deployment in deployments.items()}
    firsts, needed = pack([units[name] * gpus[0] for name, gpus in sizes.items()
                            for _ in range(len(gpus) // units[name])], system.gpus_per_node)
    if needed > system.gpus:
        shared = _shared_places(scenario, deployments, units, system)
        if shared is None:
            raise DoesNotFit(_shortage(sizes, system, needed))
        return shared
    ordered = iter(firsts)
    return {name: [first + engine * gpus[0] for first in islice(ordered, len(gpus) // units[name])
                   for engine in range(units[name])] for name, gpus in sizes.items()}


def _shared_places(scenario: Scenario, deployments: Mapping[str, Deployment], units: Mapping[str, int], system: System
                   ) -> dict[str, list[int]] | None:
    """As `_placed`, where pools that change their sizes may have the same GPUs, one after the other.

    Replicas that are there at the start, warm ones among them, have GPUs of their own, and so has each replica of a
    pool among those of that pool; further ones lie where fewest others may be.  None where that cannot be.
    """
    wide = {name: units[name] * made.serve.gpus for name, made in deployments.items()}
    each = {name: made.serve.data_parallel_size // units[name] for name, made in deployments.items()}
    counts = {name: pool.replicas + pool.warm if scenario.changes_size(name) else pool.places
              for name, pool in scenario.pools.items() if name in deployments}
    firsts, needed = pack([wide[name] for name in deployments for _ in range(counts[name] * each[name])],
                          system.gpus_per_node)
    if needed > system.gpus:
        return None
    ordered, found = iter(firsts), dict[str, list[int]]()
    taken = np.zeros(system.gpus, int)
    for name in deployments:
        found[name] = [*islice(ordered, counts[name] * each[name])]
        for first in found[name]:
            taken[first:first + wide[name]] += 1
    for name in deployments:
        for _ in range((scenario.pools[name].places - counts[name]) * each[name]):
            place = _least_taken(taken, found[name], wide[name], system.gpus_per_node)
            if place is None:
                return None
            found[name].append(place)
            taken[place:place + wide[name]] += 1
    return {name: [first + engine * made.serve.gpus for first in found[name] for engine in range(units[name])]
            for name, made in deployments.items()}


def _least_taken(taken: Ints, own: Sequence[int], wide: int, node: int) -> int | None:
    """Where *wide* GPUs lie together that fewest have *taken*, and none of their *own* pool; None for nowhere."""
    places = [first for first in range(0, len(taken) - wide + 1, wide if wide <= node else node)
              if wide > node or first // node == (first + wide - 1) // node]
    free = [first for first in places if all(first + wide <= other or other + wide <= first for other in own)]
    return min(free, key=lambda first: (int(taken[first:first + wide].max()), first), default=None)


def unit(deployment: Deployment, node: int) -> int:
    """How many engines lie side by side on one node of so many GPUs: those that share experts, if all of them fit."""
    together = deployment.shards[0].data
    return together if together * deployment.serve.gpus <= node else 1


def _shortage(sizes: Mapping[str, Sequence[int]], system: System, needed: int) -> str:
    engines = ", ".join(f"{name} {len(gpus)} x {gpus[0]}" for name, gpus in sizes.items())
    nodes = -(-needed // system.gpus_per_node)
    advice = f"set nodes to {nodes} or more, or lower replicas" if system.network else (
        "lower replicas, or name a system with a [network] between nodes (docs/plugins.md)")
    return (f"pools need {needed} GPUs of {system.name}, node by node ({engines}), and there are {system.gpus};"
            f" {advice}")


def _pool(scenario: Scenario, name: str, deployment: Deployment, firsts: Sequence[int], offset: int) -> EnginePool:
    settings, ranks = scenario.pools[name], deployment.serve.data_parallel_size
    groups = [tuple(firsts[first:first + ranks]) for first in range(0, len(firsts), ranks)]
    places = tuple(EnginePlace(replica, first, group) for replica, group in enumerate(groups) for first in group)
    return EnginePool(name, settings.role, deployment, settings.places, 0, places, offset)


def _numbered(pools: Sequence[EnginePool]) -> Iterator[EnginePool]:
    """*pools* with their engines numbered one after the other."""
    start = 0
    for pool in pools:
        yield evolve(pool, start=start)
        start += len(pool.places)


def _resolved(scenario: Scenario, deployments: Mapping[str, Deployment]) -> Scenario:
    """*scenario* with every setting of its pools filled in: those that all pools share, and what differs by pool."""
    made = {name: deployment.scenario for name, deployment in deployments.items()}
    serve = {name: plain(alone.serve) for name, alone in made.items()}
    whole = _shared(scenario.serve, list(serve.values()))
    hardware = {(alone.gpu, alone.system) for alone in made.values()}
    own = {name: {"gpu": None, "system": None} if len(hardware) == 1 else {"gpu": alone.gpu, "system": alone.system}
           for name, alone in made.items()}
    pools = {name: evolve(settings, serve=beside(plain(whole), serve[name]), **own[name])
             for name, settings in scenario.pools.items()}
    gpu, system = hardware.pop() if len(hardware) == 1 else (scenario.gpu, scenario.system)
    oracles = [alone.oracle for alone in made.values()]
    oracle = oracles[0] if all(other == oracles[0] for other in oracles) else scenario.oracle
    return evolve(scenario, pools=pools, serve=whole, gpu=gpu, system=system, oracle=oracle)


def _shared(settings: EngineSettings, of_pools: Sequence[Mapping[str, Any]]) -> EngineSettings:
    """*settings* with what all pools have alike; as they are where that alone is not possible."""
    try:
        return structure(EngineSettings, {**plain(settings), **alike(of_pools)})
    except ConfigError:
        return settings

"""A scenario with several times its engines."""

from collections.abc import Mapping, Sequence

from attrs import evolve

from ksim.foundation.config import Choice
from ksim.simulation.fleet import Fleet, unit
from ksim.simulation.packing import pack
from ksim.simulation.pool import Pool
from ksim.simulation.scenario import Scenario
from ksim.specs.pools import PoolSettings

#: The name of the pool that a scenario without pools becomes.
POOL = "engines"


def gpus_of(fleet: Fleet) -> int:
    """How many GPUs the engines of *fleet* use; others of their nodes do not count."""
    return sum(pool.deployment.serve.gpus * len(pool.places) for pool in fleet.pools)


def replicated(scenario: Scenario, count: int) -> Scenario:
    """*scenario* with *count* times its engines, and as many nodes as they need at least.

    A scenario without pools becomes a pool of role "both".  Of one with pools, each pool has *count* times its
    replicas.  One replica is the scenario as it is.
    """
    if count == 1:
        return scenario
    pools = {name: _times(pool, count) for name, pool in scenario.pools.items()} or {
        POOL: PoolSettings(role="both", replicas=count)}
    fleet = Fleet.of(scenario)
    shared = [pool for pool in fleet.pools if not pool.name or scenario.pools[pool.name].nodes is None]
    needed = max((_nodes(pools, count) for pools in _by_system(shared).values()), default=0)
    there = max((pool.deployment.system.nodes for pool in shared), default=0)
    return evolve(scenario, pools=pools, nodes=needed if needed > there else scenario.nodes)


def _times(pool: PoolSettings, count: int) -> PoolSettings:
    return evolve(pool, replicas=count * pool.replicas, nodes=None if pool.nodes is None else count * pool.nodes)


def _by_system(pools: Sequence[Pool]) -> Mapping[tuple[str | Choice | None, str | None], list[Pool]]:
    """*pools* by the system whose nodes they share."""
    systems: dict[tuple[str | Choice | None, str | None], list[Pool]] = {}
    for pool in pools:
        systems.setdefault((pool.deployment.scenario.gpu, pool.deployment.scenario.system), []).append(pool)
    return systems


def _nodes(pools: Sequence[Pool], count: int) -> int:
    """How many nodes *count* times the engines of *pools* need, packed in their order."""
    node = pools[0].deployment.system.gpus_per_node
    sizes = [size for pool in pools for size in _sizes(pool, node, count)]
    return -(-pack(sizes, node)[1] // node)


def _sizes(pool: Pool, node: int, count: int) -> list[int]:
    """The GPUs that lie side by side, for each such group of engines of *count* times a *pool*."""
    together = unit(pool.deployment, node)
    return [together * pool.deployment.serve.gpus] * (count * len(pool.places) // together)

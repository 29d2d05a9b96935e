"""What a feature adds to engines, and to the fleet that they are in: the second half of a feature's contract.

To add a feature, write a module of `ksim.features` with a `FEATURE`, a `WiredFeature` that overrides what it adds, and
say in `ksim.scenario.features.WANTED` what asks for it.  Assembly asks all features, and knows none by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import Factory, frozen

from ksim.cost.step import Timer
from ksim.engine.engine import Engine
from ksim.engine.loop_times import Horizon
from ksim.flow.log import Log
from ksim.flow.request import BlockKeys, Request
from ksim.kv.cache import Cache
from ksim.kv.cache.evictions import Eviction
from ksim.network.links import Links
from ksim.scenario.defaults import Deployment
from ksim.scenario.features import Feature
from ksim.scenario.scenario import Scenario
from ksim.scheduling.connector import Connector
from ksim.scheduling.scheduler import Rules
from ksim.simulation.pool import EnginePlace, EnginePool

if TYPE_CHECKING:
    from ksim.cluster.cluster import Clients
    from ksim.cluster.gateway import Gateway
    from ksim.engine.collective_flows import CollectiveFlows
    from ksim.engine.governors import Supervised
    from ksim.engine.ranks import DataParallelGroup, Stages
    from ksim.kv.transfer.endpoint import ConnectorWorker, Endpoint
    from ksim.kv.transfer.transfer import TransferNetwork
    from ksim.network.network import FleetNetwork

__all__ = ["Connection", "Extension", "KvMoves", "RankMaker", "RunningFleet", "WiredFeature"]


@frozen
class Extension:
    """What a feature changes in engines of one kind: a `kind` that extends it, whose further fields are `fields`."""

    of: type[Engine]
    kind: type[Engine]
    fields: Mapping[str, Any] = Factory(dict)


@frozen
class Connection:
    """Both sides of an engine's KV connector, its end of transfers between engines, None where it has none, and the
    rules of its scheduler."""

    connector: Connector | None = None
    worker: "ConnectorWorker | None" = None
    endpoint: "Endpoint | None" = None
    rules: Sequence[Rules] = ()


class KvMoves(Protocol):
    """What moves the KV of a fleet: between engines, over `transfers`, or to and from what is below their GPUs."""

    @property
    def network(self) -> "FleetNetwork": ...

    @property
    def transfers(self) -> "TransferNetwork | None": ...

    def connection(self, pool: EnginePool, number: int, place: EnginePlace, cache: Cache) -> Connection:
        """The connector of engine *number* of *pool*, which is at *place* and has this *cache*."""
        ...

    def collective_flows(self, pool: EnginePool, place: EnginePlace) -> "CollectiveFlows | None":
        """The collectives between nodes of the engine at *place*, or of its data-parallel group, which share links with
        KV; None if it lies on one node."""
        ...


class RunningFleet(Protocol):
    """A run that goes on."""

    @property
    def pools(self) -> Sequence[EnginePool]: ...

    @property
    def scenario(self) -> Scenario: ...

    @property
    def cluster(self) -> "Clients": ...

    @property
    def env(self) -> Horizon: ...

    @property
    def log(self) -> Log: ...

    @property
    def over(self) -> bool:
        """Whether all requests have come and ended."""
        ...


class RankMaker(Protocol):
    """Makes the pipeline stages of a pool's engines, and the groups of those that share experts."""

    def group(self, size: int, width: int) -> "DataParallelGroup":
        """The group of *size* engines, whose dummy steps have *width* tokens."""
        ...

    def stages(self, number: int, place: EnginePlace, timers: Sequence[Timer],
               shared: "CollectiveFlows | None") -> "Stages":
        """The stages of engine *number*, which is at *place* and prices its steps with *timers*.

        Where its collectives between nodes share links with KV, *shared* has the flows.
        """
        ...


class WiredFeature(Feature):
    """What a feature adds to a deployment, its engines and its fleet; a method that it does not define adds nothing."""

    # Engines.

    def rules(self, deployment: Deployment) -> Sequence[Rules]:
        """Rules of an engine's scheduler."""
        return ()

    def extensions(self, deployment: Deployment) -> Sequence[Extension]:
        """What engines do besides, by their kind."""
        return ()

    def cache(self, deployment: Deployment, blocks: int, eviction: Eviction | None, keys: BlockKeys | None
              ) -> Cache | None:
        """A KV cache of so many *blocks* in the place of the usual one; None for that.

        An *eviction* of None is the one that vLLM's caches have built in.  With *keys*, the cache tells of each block.
        """
        return None

    def governor(self, deployment: Deployment) -> "Supervised | None":
        """What sets the power of an engine's GPUs."""
        return None

    def facts(self, pool: EnginePool, place: EnginePlace) -> Mapping[str, Any]:
        """Fields of `EngineBuilt`, by which results judge the engine at *place*."""
        return {}

    def ranks(self, pool: EnginePool, env: Horizon, log: Log, network: Callable[[], "FleetNetwork"]
              ) -> "RankMaker | None":
        """What makes stages whose ranks differ, on the fleet's *network*; None for those whose ranks are alike."""
        return None

    def preparation(self, deployment: Deployment) -> Callable[[Request], Request] | None:
        """What makes of a request what the model sees."""
        return None

    # Fleets.

    def uses_disks(self, pools: Sequence[EnginePool]) -> bool:
        """Whether bytes move to and from the disks of nodes."""
        return False

    def check_fleet(self, scenario: Scenario, pools: Sequence[EnginePool], links: Links) -> None:
        """Raise ConfigError for pools that cannot be, or cannot work together."""

    def moves(self, pools: Sequence[EnginePool], links: Links, env: Horizon, log: Log) -> KvMoves | None:
        """What moves KV over *links*, and writes to *log* how it uses them."""
        return None

    def gateway(self, scenario: Scenario, router: Any, env: Horizon, log: Log) -> "Gateway | None":
        """Who holds requests back before *router* chooses, or refuses them."""
        return None

    def coupling(self, pools: Sequence[EnginePool]) -> str:
        """Why engines of these pools depend on what others do; "" if they do not."""
        return ""

    # Runs.

    def begin(self, running: RunningFleet) -> None:
        """Start what goes on beside the engines, before the first event."""

    def check_run(self, pools: Sequence[EnginePool]) -> None:
        """Raise ConfigError, after a look at typical steps, for a run that would not be as asked."""

    def run_remarks(self, pools: Sequence[EnginePool], summary: Callable[[], Mapping[str, Any]]) -> Iterator[str]:
        """What users should know of a run, whose *summary* is worked out when it is asked for."""
        yield from ()

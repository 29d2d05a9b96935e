"""A pool of a fleet: a deployment, as often as it is replicated, and where its engines are."""

from collections.abc import Callable
from typing import TypeVar

from attrs import fields_dict, frozen

from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.scenario.defaults import Deployment
from ksim.specs.pools import PoolSettings

T = TypeVar("T")


@frozen
class EnginePlace:
    """Where an engine of replica number `replica` is: on GPUs from `first` on of its system.

    `firsts` are the first GPUs of all engines of the replica, which are a data-parallel group.
    """

    replica: int
    first: int
    firsts: tuple[int, ...]


@frozen
class EnginePool:
    """`replicas` copies of a deployment.

    Its engines are numbered from `start` on, and lie at `places` of a system whose first GPU has number `offset` in the
    fleet.
    """

    name: str
    role: str
    deployment: Deployment
    replicas: int
    start: int
    places: tuple[EnginePlace, ...]
    offset: int = 0

    @property
    def model(self) -> str:
        """What it serves, as the scenario names it."""
        return self.deployment.scenario.model

    @property
    def numbers(self) -> range:
        """The numbers of its engines."""
        return range(self.start, self.start + len(self.places))

    @property
    def coupled(self) -> list[range]:
        """The numbers of its engines, together those that share experts."""
        together = self.deployment.shards[0].data
        return [self.numbers[first:first + together] for first in range(0, len(self.places), together)]

    def engine_name(self, number: int) -> str:
        return f"{self.name or 'engine'}{number - self.start}"

    def gpus(self, place: EnginePlace) -> range:
        """The numbers in the fleet of the GPUs of the engine at *place*, stage by stage."""
        first = self.offset + place.first
        return range(first, first + self.deployment.serve.gpus)


def named(name: str, work: Callable[[], T]) -> T:
    """What *work* for the pool *name* returns; its errors name the pool, and its keys."""
    try:
        return work()
    except (ConfigError, DoesNotFit) as error:
        if not name:
            raise
        where, *problem = error.args
        own = where.partition(".")[0] in fields_dict(PoolSettings)
        raise type(error)(f"pools.{name}.{where}" if own else f"pool {name}: {where}", *problem) from None

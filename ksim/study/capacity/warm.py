"""Set-ups that stay ready between runs: looked up once in a process, with tables of prices that stay warm.

Most of a short run is spent on pricing steps of new sizes, and runs at other rates have the same sizes again.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from attrs import evolve, field, fields, frozen

from ksim.cost.passes import Timer
from ksim.foundation.config import structure
from ksim.simulation.deployment import Deployment
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.workload.workload import Workload

#: The set-ups that a process keeps ready.
_SETUPS = 8


def setup(scenario: Scenario, errors: int | None = None) -> Fleet:
    """The fleet of *scenario* with those kernel *errors*, which a process looks up once, whatever the workload."""
    bare = evolve(scenario, workload=structure(Workload, ANY_WORKLOAD, "workload"), seed=0, kernel_errors=errors)
    return _fleet(_Text(bare))


@frozen
class WarmDeployment(Deployment):
    """A deployment whose timers are made once; engines of one GPU each, whose places do not matter, share theirs."""

    _timers: dict[tuple[Any, ...], list[Timer]] = field(factory=dict, eq=False, repr=False)

    def timers(self, first: int = 0, firsts: Sequence[int] = ()) -> list[Timer]:
        alone = self.serve.gpus == 1 and self.shards[0].data == 1
        key = () if alone else (first, tuple(firsts))
        if key not in self._timers:
            self._timers[key] = super().timers(first, firsts)
        return self._timers[key]

    @classmethod
    def like(cls, deployment: Deployment) -> "WarmDeployment":
        """*deployment*, with timers that stay."""
        return cls(**{one.name: getattr(deployment, one.name) for one in fields(Deployment)})


class _Text:
    """A scenario as the key of a cache: by all that it says."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self._text = scenario, repr(scenario)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and self._text == other._text


@lru_cache(maxsize=_SETUPS)
def _fleet(key: _Text) -> Fleet:
    fleet = Fleet.of(key.scenario)
    pools = (evolve(pool, deployment=WarmDeployment.like(pool.deployment)) for pool in fleet.pools)
    return evolve(fleet, pools=tuple(pools))

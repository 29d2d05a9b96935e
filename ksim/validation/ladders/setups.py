"""How the ladders were set up: the scenario and the load of each arm, from a data file that has the sources."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from attrs import field, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import KsimError
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.validation.ladders.loads import Load


class NotRun(KsimError):
    """Why an arm is not simulated; arms with the same reason have the same text."""


@frozen
class Setup:
    """The `scenario` of the `arms` of some `runs` of a ladder, without a workload, and their `load`.

    `pause` seconds lie between stages.  Arms with a `reason` are not simulated.
    """

    ladder: str
    runs: tuple[str, ...]
    arms: tuple[str, ...]
    text: str
    scenario: Mapping[str, Any] = field(factory=dict)
    load: Load | None = None
    pause: float = 0.0
    reason: str = ""


@frozen
class Setups:
    """All that is known of ladders."""

    setups: tuple[Setup, ...]


@cache
def known() -> tuple[Setup, ...]:
    """How all ladders that ksim knows were set up."""
    return catalog.value(Setups, "recipes", "ladders").setups


def setup_of(ladder: str, run: str, arm: str) -> Setup:
    """How an arm was set up; raises NotRun, with the reason, for one that is not simulated."""
    for setup in known():
        if setup.ladder == ladder and run in setup.runs and arm in setup.arms:
            if setup.reason:
                raise NotRun(setup.reason)
            return setup
    raise NotRun("there is no recipe for this ladder")


def scenario(setup: Setup) -> Scenario:
    return Scenario.of({**setup.scenario, "workload": ANY_WORKLOAD}, setup.ladder)

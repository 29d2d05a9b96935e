"""How the ladders were set up: the scenario and the load of each arm, from a data file that has the sources."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import KsimError
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.validation.ladders.loads import Load


class NotRun(KsimError):
    """Why an arm is not simulated; arms with the same reason have the same text."""


@frozen
class Setup:
    """The `scenario` of the `arms` of some `runs` of a ladder, without a workload, and their `load`.

    `text` says where this stands.  `pause` seconds lie between stages.  Arms with a `reason` are not simulated.
    Paths are relative to the `folder` of the file that has this.
    """

    ladder: str
    runs: tuple[str, ...]
    arms: tuple[str, ...]
    text: str
    scenario: Mapping[str, Any] = field(factory=dict)
    load: Load | None = None
    pause: float = 0.0
    reason: str = ""
    folder: str = ""

    def __attrs_post_init__(self) -> None:
        if bool(self.reason) == bool(self.load):
            raise ValueError("needs either a load, or a reason why it is not simulated")


@frozen
class Setups:
    """All that is known of ladders."""

    setups: tuple[Setup, ...]


@cache
def known() -> tuple[Setup, ...]:
    """How all ladders that ksim knows were set up."""
    return read("ladders")


def read(name: str) -> tuple[Setup, ...]:
    """The setups in ksim/data/recipes, or those in a user's own file, which is written like them.

    Raises DataError for a file that cannot be read, ConfigError for one that says something else.
    """
    folder = str(catalog.path_of("recipes", name).parent)
    return tuple(evolve(setup, folder=folder) for setup in catalog.value(Setups, "recipes", name).setups)


def setup_of(name: tuple[str, str, str], setups: Sequence[Setup]) -> Setup:
    """The first of *setups* for this ladder, run and arm; raises NotRun, with the reason, for one not simulated."""
    ladder, run, arm = name
    for setup in setups:
        if setup.ladder == ladder and run in setup.runs and arm in setup.arms:
            if setup.reason:
                raise NotRun(setup.reason)
            return setup
    if ladder in {setup.ladder for setup in setups}:
        raise NotRun(f"the recipes of {ladder} have no arm {arm} of run {run}")
    raise NotRun(f"there is no recipe for {ladder}; write one, and name its file by --recipes")


def scenario(setup: Setup) -> Scenario:
    return Scenario.of({**setup.scenario, "workload": ANY_WORKLOAD}, setup.ladder, Path(setup.folder))

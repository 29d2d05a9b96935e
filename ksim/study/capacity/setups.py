"""The set-ups that a capacity question compares, and a set-up's scenario with some number of replicas."""

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from ksim.foundation.errors import DoesNotFit, KsimError
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario
from ksim.specs.hardware import MOST
from ksim.study.capacity.replicas import gpus_of, replicated
from ksim.study.grid import Axis, Settings, combinations, short_names, unbuildable, value_text
from ksim.study.pareto import first_of

#: Settings whose names people say in short.
_SHORT = {"tensor_parallel_size": "TP", "pipeline_parallel_size": "PP", "data_parallel_size": "DP"}
#: Settings that say where a set-up runs.
_PLACES = ("gpu", "system")


@frozen
class SetUp:
    """A scenario with the `settings` that tell it from the other set-ups, and why it cannot run, if it cannot.

    `gpus` are those of one replica: of the scenario as it is.  There can be so many replicas at `most`.
    """

    name: str
    settings: Settings
    scenario: Scenario | None = field(repr=False)
    gpus: int = 0
    problem: str = ""
    most: int = MOST

    def replicas(self, count: int) -> Scenario:
        """Its scenario with *count* replicas."""
        assert self.scenario is not None, "a set-up that cannot run has no replicas"
        return replicated(self.scenario, count)


def set_ups(scenario: Scenario, over: Sequence[Axis]) -> list[SetUp]:
    """A set-up for each combination of the values of *over*; raises KsimError where none can run.

    Raises UnknownName for an unknown name, which is a mistake whatever the other settings are.
    """
    chosen = combinations(over)
    made = [_set_up(scenario, settings, outcome.problem if outcome else "")
            for settings, outcome in zip(chosen, unbuildable(scenario, chosen), strict=True)]
    if all(setup.problem for setup in made):
        reasons = first_of([setup.problem for setup in made])
        raise KsimError(f"none of {len(made)} set-ups can run: {reasons}" if len(made) > 1 else reasons)
    return made


def _set_up(scenario: Scenario, settings: Settings, problem: str) -> SetUp:
    if problem:
        return SetUp(_name(scenario, settings), settings, None, problem=problem)
    changed = scenario.with_values(settings) if settings else scenario
    fleet = Fleet.of(changed)
    try:
        fleet.check_memory()
    except DoesNotFit as error:
        return SetUp(_name(changed, settings), settings, None, problem=str(error))
    size = max(*(pool.replicas for pool in fleet.pools), *(part.system.nodes for part in fleet.machines))
    return SetUp(_name(changed, settings), settings, changed, gpus_of(fleet), most=MOST // size)


def _name(scenario: Scenario, settings: Settings) -> str:
    """What tells a set-up from others, such as "TP4 on h200"; of a single set-up, its parallelism and GPU."""
    chosen = settings or ({} if scenario.pools else {
        "serve.tensor_parallel_size": scenario.serve.tensor_parallel_size, "gpu": scenario.gpu or scenario.system})
    names = short_names(list(chosen))
    said = [_said(key, names[key], value) for key, value in chosen.items() if key not in _PLACES]
    places = [str(chosen[key]) for key in _PLACES if key in chosen]
    return " on ".join(part for part in (", ".join(said), ", ".join(places)) if part) or "the fleet"


def _said(key: str, name: str, value: Any) -> str:
    if key.startswith("pools."):
        return f"{key.removeprefix('pools.')}={value_text(value)}"
    return f"{_SHORT[name]}{value}" if name in _SHORT else f"{name} {value_text(value)}"

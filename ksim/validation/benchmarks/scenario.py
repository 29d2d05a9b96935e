"""The scenario that a benchmark is simulated with."""

from collections.abc import Sequence
from pathlib import Path

from ksim.foundation import catalog
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario, setting


def scenario_of(path: Path, settings: Sequence[str]) -> Scenario:
    """The scenario at *path* with *settings* such as ``gpu=h100``; it needs no workload, which the benchmark has.

    Raises KsimError for what is no scenario.
    """
    if path.suffix == ".toml" and path.is_file() and "workload" not in (table := catalog.read(path)):
        scenario = Scenario.of({**table, "workload": ANY_WORKLOAD}, str(path), path.parent)
    else:
        scenario = Scenario.read(path)
    return scenario.with_values(dict(map(setting, settings))) if settings else scenario

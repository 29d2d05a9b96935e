"""Tune a scenario, in Python."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ksim.simulation.scenario import Scenario
from ksim.study.axes import axes_of
from ksim.study.pareto import TOLERATED
from ksim.study.tuning.plan import ROUND, TunePlan, objectives, requirements
from ksim.study.tuning.space import Space
from ksim.study.tuning.tuner import Tuner, check_tuning
from ksim.study.tuning.tuning import Tuning
from ksim.study.workers import PROCESSES


def tune(scenario: Scenario | str | Path, minimize: str | Sequence[str] = (), maximize: str | Sequence[str] = (), *,
         subject_to: str | Sequence[str] = (), space: Mapping[str, Any] | Iterable[str], trials: int = 100,
         sampler: str = "tpe", seed: int = 0, repeat: int = 1, round_size: int = ROUND,
         max_rejected: float = TOLERATED, prune: bool = True, jobs: int | None = None, on: str = PROCESSES,
         address: str | None = None, output: Path | str | None = None, resume: bool = False, force: bool = False
         ) -> Tuning:
    """Look for the settings of *scenario* with the least of *minimize* and the most of *maximize*.

    Trials count that meet *subject_to*, such as "p99_ttft_ms<1000".  *space* has the values of each key: a list, or a
    range such as "1024:16384:log".  There are at most so many *trials*; docs/tune.md explains the rest.  With *output*,
    every run is kept there as it ends, and *resume* goes on with what is there.  Raises KsimError.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    plan = TunePlan(scenario, Space.of(axes_of(space)), objectives(_texts(minimize), _texts(maximize)),
                    requirements(_texts(subject_to)), sampler=sampler, seed=seed, repeat=repeat, round=round_size,
                    tolerated=max_rejected, prune=prune)
    path = None if output is None else Path(output)
    check_tuning(plan, trials, path, resume, force, on, address)
    with Tuner.of(plan, f"Tuning of {Path(scenario.model).name}", path, resume, force) as tuner:
        tuner.search(trials, jobs=jobs, on=on, address=address)
        return tuner.tuning


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given

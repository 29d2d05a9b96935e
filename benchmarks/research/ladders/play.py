"""Simulate an arm of a ladder, and measure its stages as the generator does.

A row of a ladder beside what was predicted of it.

Measured load ladders: a table with a row for each rate, arm and run.

What ladders are read for: the rate at which queues begin, and what one arm gains over another.

How the ladders were set up: the scenario and the load of each arm, from a data file that has the sources.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from benchmarks.research import RECIPES
from benchmarks.research.ladders.loads import Load
from ksim.calibration.reading.frames import Frame, load
from ksim.foundation import catalog
from ksim.foundation.errors import DataError, KsimError
from ksim.results.requests import Requests
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play

_KEY = ("ladder", "run", "arm", "stage")
#: What is compared: columns of the table, in their own units.  The first are completed work over a stage's seconds.
RATES = ("req_s", "out_tok_s", "in_tok_s", "total_tok_s")
MEASURES = (*RATES, "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p95_s", "ttft_p99_s", "e2e_mean_s", "e2e_p50_s",
            "e2e_p90_s", "e2e_p95_s", "e2e_p99_s", "tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p95_ms",
            "tpot_p99_ms", "itl_mean_ms")


@frozen
class Row:
    """A stage of a ladder, or a whole run: what was measured of the `MEASURES`, by name.

    `rate` is in requests per second, nan where the client kept a number of requests in flight, or for a whole run.
    """

    ladder: str
    run: str
    arm: str
    stage: str
    rate: float
    measured: Mapping[str, float]

    @property
    def name(self) -> tuple[str, str, str]:
        """Ladder, run and arm."""
        return self.ladder, self.run, self.arm


def read_rows(path: Path) -> list[Row]:
    """Read the rows of the table at *path*; raises DataError for a missing column or an impossible value."""
    frame = load(path)
    if missing := [name for name in (*_KEY, "rate_target_rps") if name not in frame]:
        raise DataError(str(path), f"has no column {missing[0]!r}; a table of ladders has {', '.join(_KEY)},"
                                   f" rate_target_rps and some of {', '.join(MEASURES)}")
    columns = {name: _numbers(path, frame, name) for name in MEASURES if name in frame}
    keys = zip(*(frame.texts(name).tolist() for name in _KEY), strict=True)
    rates = frame.numbers("rate_target_rps").tolist()
    return [Row(ladder, run, arm, stage, rate, {name: values[place] for name, values in columns.items()
                                                if not math.isnan(values[place])})
            for place, ((ladder, run, arm, stage), rate) in enumerate(zip(keys, rates, strict=True))]


def _numbers(path: Path, frame: Frame, name: str) -> list[float]:
    numbers: list[float] = frame.numbers(name).tolist()
    for place, number in enumerate(numbers):
        if not math.isnan(number) and not 0 < number < math.inf:
            raise DataError(str(path), f"{frame.unit} {frame.places[place]}: column {name!r} is {number:g}; expected a"
                                       " number above 0")
    return numbers


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
    return read_setups(RECIPES / "ladders.toml")


def read_setups(path: Path) -> tuple[Setup, ...]:
    """The setups in the file at *path*: those of benchmarks/research/recipes, or a user's own.

    Raises DataError for a file that cannot be read, ConfigError for one that says something else.
    """
    return tuple(evolve(setup, folder=str(path.parent)) for setup in catalog.value(Setups, "recipes", str(path)).setups)


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


#: Percentiles that tables of ladders have.
_PERCENTILES = (50, 90, 95, 99)
Values = Mapping[str, float]
Name = tuple[str, str, str]


@frozen
class Arm:
    """What was predicted of an arm: of each stage, by its rate, of the whole run, and the stages' means; or the
    `reason` why nothing."""

    name: Name
    reason: str = ""
    stages: Mapping[float, Values] = field(factory=dict)
    whole: Values = field(factory=dict)
    means: Values = field(factory=dict)


def predict(question: tuple[Name, Sequence[Setup], int]) -> Arm:
    """Simulate the arm of this name, as one of these setups says, with the seed."""
    name, known, seed = question
    try:
        setup = setup_of(name, known)
        assert setup.load, "an arm without a reason has a load"
        result = play(Fleet.of(scenario(setup)), setup.load.requests(seed))
        return _measured(name, setup, setup.load, result.history.requests)
    except NotRun as why:
        return Arm(name, str(why))
    except KsimError as error:
        return Arm(name, f"{type(error).__name__}: {error}")


def _measured(name: Name, setup: Setup, load: Load, requests: Requests) -> Arm:
    stages, spans, first = {}, [], 0
    starts = [*load.starts(), np.inf]
    for place, stage in enumerate(load.plan):
        rows = slice(first, first := first + stage.count)
        ended = requests.finished[rows]
        if np.nanmax(ended, initial=0.0) > starts[place + 1]:
            raise NotRun(f"a stage at {stage.rate:g} requests/s has not ended when the next one starts")
        if stage.shown:
            spans.append(float(np.nanmax(ended) - requests.arrival[rows][0]))
            stages[stage.rate] = measures(requests, rows, spans[-1], load.answer)
    whole = sum(spans) + setup.pause * (len(spans) - 1)
    shown = slice(sum(stage.count for stage in load.plan if not stage.shown), None)
    counts = [stage.count for stage in load.plan if stage.shown]
    return Arm(name, "", stages, measures(requests, shown, whole, load.answer), _means(list(stages.values()), counts))


def _means(stages: Sequence[Values], counts: Sequence[int]) -> Values:
    """Rates: their plain mean over the stages.  Latencies: that of stages weighted by their requests."""
    return {name: float(np.average([stage[name] for stage in stages], weights=None if name in RATES else counts))
            for name in stages[0]}


def measures(requests: Requests, rows: slice, span: float, answer: float) -> Values:
    """What a table of ladders has, of requests that were served in *span* seconds, drain included.

    The generator counts *answer* tokens for each.
    """
    done = requests.completed[rows]
    count, prompts = float(done.sum()), float(requests.prompt[rows][done].sum())
    values = {"req_s": count / span, "out_tok_s": answer * count / span, "in_tok_s": prompts / span,
              "total_tok_s": (prompts + answer * count) / span}
    gaps = requests.output[rows][done] - 1
    streamed = (requests.e2e - requests.ttft)[rows][done]
    values["itl_mean_ms"] = 1e3 * float(streamed.sum() / gaps.sum())
    for label, unit, scale in (("ttft", "s", 1.0), ("e2e", "s", 1.0), ("tpot", "ms", 1e3)):
        column = scale * getattr(requests, label)[rows][done]
        column = column[~np.isnan(column)]
        values[f"{label}_mean_{unit}"] = float(column.mean())
        values |= {f"{label}_p{share}_{unit}": float(np.percentile(column, share)) for share in _PERCENTILES}
    return values


@frozen
class Cell:
    """A row of the table, and what was predicted of it."""

    row: Row
    predicted: Values

    @property
    def errors(self) -> dict[str, float]:
        """Signed errors in per cent, by name, of what was measured."""
        return {name: 100 * (self.predicted[name] / value - 1) for name, value in self.row.measured.items()
                if name in self.predicted}


#: A queue has begun where the 90th percentile of TTFT passes so many seconds.
QUEUE = 10.0
#: What arms are compared by, as far as the table has it.
_COMPARED = ("req_s", "out_tok_s", "total_tok_s", "ttft_mean_s", "ttft_p90_s")


@frozen
class Compared:
    """Something that ladders are read for, as `measured` and as `predicted`; either is nan where it does not happen."""

    ladder: str
    run: str
    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """The signed error in per cent."""
        return 100 * (self.predicted / self.measured - 1)


def compare(cells: Iterable[Cell]) -> list[Compared]:
    """The knee of each arm that has one, and the gains of each arm over the arm before it in the table."""
    runs: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        if cell.row.stage == "rate":
            runs.setdefault((cell.row.ladder, cell.row.run), {}).setdefault(cell.row.arm, []).append(cell)
    return [Compared(ladder, run, *values) for (ladder, run), arms in runs.items()
            for values in (*_knees(arms), *_gains(arms))]


def _knees(arms: dict[str, list[Cell]]) -> Iterator[tuple[str, float, float]]:
    for arm, cells in arms.items():
        if not math.isnan(measured := knee([(cell.row.rate, cell.row.measured) for cell in cells])):
            predicted = knee([(cell.row.rate, cell.predicted) for cell in cells])
            yield f"rate at which the TTFT p90 of {arm} passes {QUEUE:g} s", measured, predicted


def knee(stages: Iterable[tuple[float, Values]]) -> float:
    """The rate at which the 90th percentile of TTFT passes `QUEUE`, where its logarithm goes straight between stages;
    nan if it does not."""
    points = sorted((rate, values["ttft_p90_s"]) for rate, values in stages if "ttft_p90_s" in values)
    for (rate, before), (later, after) in itertools.pairwise(points):
        if before < QUEUE <= after:
            return rate + (later - rate) * math.log(QUEUE / before) / math.log(after / before)
    return math.nan


def _gains(arms: dict[str, list[Cell]]) -> Iterator[tuple[str, float, float]]:
    for (before, old), (arm, new) in itertools.pairwise(arms.items()):
        others = {cell.row.rate: cell for cell in old}
        for cell in new:
            if (other := others.get(cell.row.rate)) is None:
                continue
            for name in _COMPARED:
                if name in cell.row.measured and name in other.row.measured:
                    yield (f"{name} of {arm} over {before} at {cell.row.rate:g}/s",
                           cell.row.measured[name] / other.row.measured[name],
                           cell.predicted[name] / other.predicted[name])

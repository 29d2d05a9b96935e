"""Public measurements of whole deployments, replayed row by row.

Steady states have so many requests in flight all the time, with time, watts and joules (ML.ENERGY).  Maxima have all
requests there at the start (NVIDIA); of them only the output tokens a second are known.
"""

import csv
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import ceil, log, sqrt
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
from attrs import field, fields, frozen
from numpy.typing import NDArray

from benchmarks.research import RECIPES
from ksim.calibration.regression import weighted_median
from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.hardware import gpu_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.processes import run_in_processes
from ksim.simulation.simulate import simulate
from ksim.views.result import Result

#: The context of an engine, and the most tokens of an output, which leave room for the longest prompts.
_CONTEXT, _LONGEST = 40_960, 32_768
#: Where rows have more requests in flight than that, the host and the prompts decide more than the model's kernels.
FEW = 32


class NotRun(Exception):
    """A row is not simulated, for this reason."""


@frozen
class Figures:
    """Output tokens a second, the median time between tokens in s, watts, joules a token; nan for what is unknown."""

    rate: float
    itl: float = float("nan")
    watts: float = float("nan")
    joules: float = float("nan")


@frozen
class SteadyState:
    """A row of ML.ENERGY's table: `mean_in_flight` requests at a time, by its columns."""

    model: str
    task: str
    weights: str
    gpu: str
    gpus: int
    tp: int
    dp: int
    ep: int
    max_num_seqs: int
    mean_in_flight: float
    output_len_mean: float
    output_len_cv: float
    output_tok_s: float
    itl_p50_ms: float
    watts_all_gpus: float
    joules_per_output_token: float

    @property
    def checkpoint(self) -> str:
        return self.model.rpartition("/")[2]

    @property
    def name(self) -> str:
        return f"{self.checkpoint}, {self.task}, {self.gpus} {self.gpu}, {self.max_num_seqs} in flight"

    @property
    def measured(self) -> Figures:
        return Figures(self.output_tok_s, self.itl_p50_ms / 1e3, self.watts_all_gpus, self.joules_per_output_token)

    @property
    def fitted(self) -> bool:
        """Whether the power of boards, and the host, were fitted to rows of its model."""
        known = assumptions().models.get(self.checkpoint)
        return known is not None and known.fitted

    @property
    def groups(self) -> tuple[str, str, str]:
        return self.gpu, "fitted" if self.fitted else "apart", f"<= {FEW}" if self.max_num_seqs <= FEW else f"> {FEW}"

    @property
    def table(self) -> dict[str, Any]:
        """The table of its scenario; raises NotRun where it cannot be simulated."""
        known = assumptions()
        if self.checkpoint not in known.models:
            raise NotRun(f"no settings of {self.checkpoint} are known")
        if self.task not in known.tasks:
            raise NotRun(f"the prompts of {self.task} are not known")
        checkpoint, load = known.models[self.checkpoint], known.tasks[self.task]
        shares = {"data_parallel_size": self.dp} if self.dp > 1 else {"tensor_parallel_size": self.gpus}
        longest = min(round(8 * self.output_len_mean), _LONGEST)
        return {
            "model": checkpoint.model, "gpu": self.gpu.lower(), "engine": checkpoint.engine or known.engine,
            "host": known.host,
            "serve": {**known.serve, "max_num_seqs": ceil(self.max_num_seqs / self.dp), "max_model_len": _CONTEXT,
                      **shares, **({"enable_expert_parallel": True} if self.ep > 1 else {}), **checkpoint.serve},
            "workload": {"max_concurrency": self.max_num_seqs, "synthetic": {
                "arrivals": {"process": "burst"}, "count": self._count, "max_tokens": longest,
                "prompt": _lognormal(load.prompt, load.cv),
                "output": _lognormal(self.output_len_mean, self.output_len_cv)}}}

    @property
    def _count(self) -> int:
        """As many requests as leave a steady state between the first ones, which begin together, and the last ones."""
        return 2 * self.max_num_seqs + max(24, self.max_num_seqs // 2)

    def figures(self, result: Result) -> Figures:
        """The figures from when half of the requests that began together have ended to when the last one arrived."""
        history = result.history
        steps, requests = history.steps, history.requests
        ended = np.sort(requests.finished)
        begin = ended[self.max_num_seqs // 2 - 1]
        end = max(float(requests.arrival.max()), float(ended[-self.max_num_seqs - 1]))
        inside = (steps.time > begin) & (steps.time <= end)
        tokens = np.bincount(requests.token_steps, minlength=len(steps))[inside]
        watts = float(steps.joules[inside].sum()) / (end - begin) + history.static_joules / history.duration
        rate = float(tokens.sum()) / (end - begin)
        return Figures(rate, _median_gap(steps.time[inside], steps.engine[inside], tokens), watts, watts / rate)


def _lognormal(mean: float, cv: float) -> dict[str, Any]:
    return {"kind": "lognormal", "median": mean / sqrt(1 + cv**2), "sigma": sqrt(log(1 + cv**2))}


def _median_gap(times: NDArray[Any], engines: NDArray[Any], tokens: NDArray[Any]) -> float:
    """The median over *tokens* of the time since the step before of the same engine."""
    gaps, counts = [], []
    for engine in np.unique(engines):
        own = (engines == engine) & (tokens > 0)
        gaps.append(np.diff(times[own]))
        counts.append(tokens[own][1:])
    return weighted_median(np.concatenate(gaps), np.concatenate(counts))


@frozen
class Maximum:
    """A row of NVIDIA's table: `requests` of fixed lengths, all there at the start, by its columns."""

    model: str
    gpu: str
    gpus: int
    weights: str
    isl: int
    osl: int
    requests: int
    output_tok_s: float

    fitted: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"{self.model} {self.weights}, {self.isl} and {self.osl} tokens, {self.gpus} {self.gpu}"

    @property
    def measured(self) -> Figures:
        return Figures(self.output_tok_s)

    @property
    def groups(self) -> tuple[str, str, str]:
        return self.gpu, self.model, self.weights

    @property
    def table(self) -> dict[str, Any]:
        """The table of its scenario; raises NotRun where it cannot be simulated."""
        known = assumptions().maxima
        serve = {**known.serve, "quantization": self.weights, "max_model_len": self.isl + self.osl + 1}
        for rule in known.models.get(self.model, ()):
            serve |= {key: self.gpus if value == "gpus" else value for key, value in rule.items()}
        if "data_parallel_size" not in serve:
            serve["tensor_parallel_size"] = self.gpus
        return {"model": self.model, "gpu": self.gpu, "engine": known.engine, "host": known.host, "serve": serve,
                "workload": {"synthetic": {
                    "arrivals": {"process": "burst"}, "count": min(self.requests, known.most), "ignore_eos": True,
                    "prompt": {"kind": "fixed", "value": self.isl}, "output": {"kind": "fixed", "value": self.osl}}}}

    def figures(self, result: Result) -> Figures:
        return Figures(float(result.history.requests.output.sum()) / result.history.duration)


Row = SteadyState | Maximum
#: The kinds of rows, by the names of their files in a folder.
KINDS: Mapping[str, type[SteadyState] | type[Maximum]] = {
    "ml_energy_v3.csv": SteadyState, "trtllm_perf_overview.csv": Maximum}


@frozen
class Checkpoint:
    """The catalogue's `model`, settings of its engine, and whether constants were `fitted` to its rows.

    A model whose kernels another release has names that `engine`.
    """

    model: str
    fitted: bool
    serve: Mapping[str, Any] = field(factory=dict)
    engine: str = ""


@frozen
class Load:
    """The mean of the `prompt` tokens that are assumed for a task, and their coefficient of variation."""

    prompt: float
    cv: float
    text: str


@frozen
class Maxima:
    """The engine, the host and the settings that are assumed for maxima, and the `most` requests that are played."""

    engine: str
    host: str
    most: int
    serve: Mapping[str, Any]
    models: Mapping[str, tuple[Mapping[str, Any], ...]] = field(factory=dict)


@frozen
class Assumptions:
    """What is assumed beyond the columns; the data file has the sources."""

    engine: str
    host: str
    serve: Mapping[str, Any]
    models: Mapping[str, Checkpoint]
    tasks: Mapping[str, Load]
    maxima: Maxima


@cache
def assumptions() -> Assumptions:
    return catalog.value(Assumptions, "recipes", str(RECIPES / "public.toml"))


def read(path: Path) -> list[Row]:
    """The rows of a file, or of those that a folder has; raises ConfigError."""
    paths = [path / name for name in KINDS if (path / name).exists()] if path.is_dir() else [path]
    if not paths:
        raise ConfigError(str(path), f"has none of {', '.join(KINDS)}")
    return [row for each in paths for row in _rows(each)]


def _rows(path: Path) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = [*csv.DictReader(lines)]
    except (OSError, UnicodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from None
    columns = {kind: [column.name for column in fields(kind)] for kind in KINDS.values()}
    kind = next((kind for kind, names in columns.items() if rows and set(names) <= rows[0].keys()), None)
    if kind is None:
        raise ConfigError(str(path), "is no table of steady states or maxima: these have the columns "
                                     + "; or ".join(", ".join(names) for names in columns.values()))
    return [structure(kind, {name: _number(row[name]) for name in columns[kind]}, f"{path}, line {line}")
            for line, row in enumerate(rows, 2)]


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


@frozen
class Answer:
    """The prediction for a row, or the `reason` why there is none; it `took` so many seconds."""

    row: Row
    reason: str = ""
    predicted: Figures | None = None
    took: float = 0.0

    def error(self, name: str) -> float:
        """The error of a figure in per cent of the measured one."""
        return 100 * float(getattr(self.predicted, name) / getattr(self.row.measured, name) - 1)

    @property
    def covered(self) -> bool:
        """Whether the measured joules lie in the interval of the GPU's power."""
        reach = gpu_of(self.row.gpu.lower()).power.reach
        return abs(self.error("joules")) <= 100 * reach


def answer(row: Row) -> Answer:
    """Simulate *row*."""
    began = time.perf_counter()
    try:
        result = simulate(Scenario.of(row.table, row.name))
    except NotRun as why:
        return Answer(row, str(why))
    except KsimError as error:
        return Answer(row, f"{type(error).__name__}: {str(error).partition(': ')[2] or error}")
    return Answer(row, "", row.figures(result), time.perf_counter() - began)


def answers(rows: Sequence[Row], jobs: int) -> Iterator[Answer]:
    """Simulate *rows* in *jobs* processes, in their order."""
    return run_in_processes(answer, rows, jobs)


@frozen
class Score:
    """The errors of a group of answers, in per cent, by figure: the median signed one and the median absolute one.

    `covered` is the share of answers whose joules lie in the interval of the GPU's power; None without joules.
    """

    name: tuple[str, ...]
    rows: int
    errors: Mapping[str, tuple[float, float]]
    covered: float | None


def scores(found: Sequence[Answer], key: Callable[[Answer], tuple[str, ...]] = lambda each: each.row.groups
           ) -> list[Score]:
    """A score for each value of *key* over the answers that are predictions."""
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for each in found:
        if each.predicted is not None:
            groups.setdefault(key(each), []).append(each)
    return [_score(name, groups[name]) for name in sorted(groups)]


def _score(name: tuple[str, ...], found: Sequence[Answer]) -> Score:
    errors: dict[str, tuple[float, float]] = {}
    for figure in ("rate", "itl", "watts", "joules"):
        values = [each.error(figure) for each in found]
        if not np.isnan(values).all():
            errors[figure] = median(values), median(map(abs, values))
    covered = sum(each.covered for each in found) / len(found) if "joules" in errors else None
    return Score(name, len(found), errors, covered)

"""Recorded serving runs: ``engine_NAME.json``, ``requests_NAME.parquet`` and ``steps_NAME.parquet`` beside it.

Simulate a recorded run: the same requests, sent at the same times, to an engine with the same settings.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite, isnan
from pathlib import Path
from statistics import median
from typing import Any

from attrs import evolve, fields, frozen

from ksim.calibration.reading.frames import load
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError, DataError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.scenario.sizing import limits
from ksim.simulation.simulate import play
from ksim.specs.host import Pace
from ksim.specs.settings import EngineSettings
from ksim.validation.cases import load_json
from ksim.views.result import Result

Row = dict[str, Any]
#: Settings that the engine worked out, by their keys in an engine file, and our names for them.
_RESOLVED = {"num_gpu_blocks": "num_gpu_blocks_override", "block_size": "block_size",
             "async_scheduling": "async_scheduling", "cudagraph": "cudagraph_mode",
             "capture_sizes": "cudagraph_capture_sizes"}
#: The columns that every row needs, with their least values.
_REQUEST = {"index": 0, "sent_s": None, "isl": 1, "osl": 1, "ttft_s": 0.0, "e2e_s": 0.0}
_STEP = {"schedule_start_s": None, "decodes": 0, "decode_context_tokens": 0}


@frozen
class Sent:
    """A request as it was sent and served, in seconds: `sent` from the start of the run, the others from `sent`."""

    index: int
    sent: float
    prompt: int
    output: int
    prefix_group: int | None
    prefix: int
    ttft: float
    e2e: float

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for an output of one token."""
        return (self.e2e - self.ttft) / (self.output - 1) if self.output > 1 else None


@frozen
class Scheduled:
    """A call of the scheduler: its start, and the batch that it made.

    `seconds` is the CPU time of the call, and `free` the number of KV blocks that it left; None where not recorded.
    """

    start: float
    decodes: int
    decode_tokens: int
    chunks: tuple[tuple[int, int], ...]
    seconds: float | None = None
    free: int | None = None

    @property
    def tokens(self) -> int:
        return self.decodes + sum(new for new, _ in self.chunks)


@frozen
class RecordedRun:
    """A load on an engine: its requests in the order in which they were sent, and the steps that served them.

    `concurrency` is the most requests that the client had in flight; None where it sent requests at given times.
    `wall` (seconds) and `joules` are None where they were not measured.
    """

    name: str
    concurrency: int | None
    requests: tuple[Sent, ...]
    steps: tuple[Scheduled, ...]
    wall: float | None
    joules: float | None


@frozen
class Recording:
    """The runs of one engine, with its model's config.json, its arguments in vLLM's names, and the resolved ones."""

    name: str
    path: Path
    config: Mapping[str, Any]
    arguments: Mapping[str, str]
    resolved: Mapping[str, Any]
    runs: tuple[RecordedRun, ...]


def find(folder: Path) -> list[Path]:
    """The ``engine_*.json`` files at *folder*; raises DataError where there are none."""
    if folder.is_file():
        return [folder]
    files = sorted(folder.glob("engine_*.json"))
    if not files:
        raise DataError(str(folder), "has no engine_*.json; expected those of recorded runs, with"
                                     " requests_*.parquet (and steps_*.parquet) beside them")
    return files


def read(path: Path) -> Recording:
    """Read the engine file *path* and its tables; raises DataError, which names what is missing or impossible."""
    name = path.stem.removeprefix("engine_")
    table = _engine(path)
    requests = _requests(path.with_name(f"requests_{name}.parquet"))
    steps = _steps(path.with_name(f"steps_{name}.parquet"))
    facts = {str(run.get("run")): run for run in table.get("runs") or []}
    runs = [RecordedRun(run, concurrency, rows, tuple(steps.get(run, ())), _fact(path, facts, run, "wall_s"),
                _fact(path, facts, run, "joules")) for run, (concurrency, rows) in requests.items()]
    resolved = {ours: table[theirs] for theirs, ours in _RESOLVED.items() if table.get(theirs) is not None}
    return Recording(name, path, table["config"], table["engine_args"], resolved, tuple(runs))


def _engine(path: Path) -> Mapping[str, Any]:
    table = load_json(path)
    for key, kind, word in (("config", Mapping, "a Hugging Face config.json"), ("engine_args", Mapping, "arguments"),
                            ("num_gpu_blocks", int, "a whole number")):
        if not isinstance(table.get(key), kind):
            raise DataError(str(path), f"{key!r} is missing or not {word}")
    return table


def _fact(path: Path, facts: Mapping[str, Any], run: str, key: str) -> float | None:
    value = facts.get(run, {}).get(key)
    if value is not None and (not isinstance(value, int | float) or not isfinite(value) or value <= 0):
        raise DataError(str(path), f"run {run!r}: {key} is {value!r}; expected a positive number")
    return value


def _rows(path: Path, least: Mapping[str, float | None], texts: tuple[str, ...]) -> Iterator[tuple[int, Row]]:
    """The numbered rows of the table *path*; raises DataError for a missing column or an impossible value."""
    frame = load(path)
    if missing := [name for name in (*texts, *least) if name not in frame]:
        raise DataError(str(path), f"has no column {', '.join(missing)}; it has {', '.join(frame.names)}")
    for number, row in enumerate(frame.table.to_pylist()):
        for name, limit in least.items():
            value = row[name]
            if not isinstance(value, int | float) or not isfinite(value) or (limit is not None and value < limit):
                raise DataError(str(path), f"row {number} (run {row['run']!r}): {name} is {value!r}; expected "
                                           + ("a number" if limit is None else f"a number of at least {limit}"))
        yield number, row


def _requests(path: Path) -> dict[str, tuple[int | None, tuple[Sent, ...]]]:
    """The concurrency and the requests of each run."""
    runs: dict[str, list[Sent]] = {}
    limits: dict[str, int | None] = {}
    for number, row in _rows(path, _REQUEST, ("run",)):
        if row["e2e_s"] < row["ttft_s"]:
            raise DataError(str(path), f"row {number} (run {row['run']!r}): e2e_s ({row['e2e_s']:g}) is less than"
                                       f" ttft_s ({row['ttft_s']:g})")
        group, limit = row.get("prefix_group"), row.get("concurrency")
        limits[row["run"]] = _whole(limit)
        runs.setdefault(row["run"], []).append(Sent(
            index=int(row["index"]), sent=float(row["sent_s"]), prompt=int(row["isl"]), output=int(row["osl"]),
            prefix_group=_whole(group), prefix=int(row.get("prefix_len") or 0), ttft=row["ttft_s"], e2e=row["e2e_s"]))
    return {run: (limits[run], tuple(sorted(rows, key=lambda row: (row.sent, row.index))))
            for run, rows in runs.items()}


def _whole(value: Any) -> int | None:
    return None if value is None or isnan(value) else int(value)


def _steps(path: Path) -> dict[str, list[Scheduled]]:
    """The scheduler's calls of each run; none where there is no file."""
    runs: dict[str, list[Scheduled]] = {}
    if not path.exists():
        return runs
    for number, row in _rows(path, _STEP, ("run", "prefills")):
        rows = runs.setdefault(row["run"], [])
        try:
            chunks = tuple((int(new), int(before)) for new, before in json.loads(row["prefills"]))
        except (TypeError, ValueError, RecursionError):
            raise DataError(str(path), f"row {number} (run {row['run']!r}): prefills is {row['prefills']!r};"
                                       f" expected a list such as [[512, 0]]") from None
        if rows and row["schedule_start_s"] < rows[-1].start:
            raise DataError(str(path), f"row {number} (run {row['run']!r}): schedule_start_s"
                                       f" ({row['schedule_start_s']:g}) is before that of the row above")
        rows.append(Scheduled(row["schedule_start_s"], int(row["decodes"]), int(row["decode_context_tokens"]), chunks,
                              row.get("schedule_s"), _whole(row.get("free_blocks"))))
    return runs


def scored(runs: tuple[RecordedRun, ...]) -> tuple[list[RecordedRun], list[str]]:
    """The runs to compare, and the names of those left out.

    The warm-up and the first static run are left out: they include what an engine does only once, such as compiling.
    """
    static = next((run.name for run in runs if run.name.startswith("static")), None)
    out = [run.name for run in runs if run.name in ("warm", static)]
    return [run for run in runs if run.name not in out], out


def serve_table(recording: Recording) -> tuple[dict[str, Any], list[str]]:
    """The arguments that ksim has as settings, as the engine resolved them, and the names of the others.

    Raises ConfigError for a value of the wrong kind.
    """
    known = {field.name for field in fields(EngineSettings)}
    table = {key: _typed(f"{recording.path}: engine_args.{key}", value)
             for key, value in recording.arguments.items() if key in known}
    return {**table, **recording.resolved}, [key for key in recording.arguments if key not in known]


def _typed(where: str, value: Any) -> Any:
    """The value of an argument, which may have been recorded as text."""
    if not isinstance(value, str):
        return value
    if value in ("True", "False"):
        return value == "True"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    if value == "":
        raise ConfigError(where, "is empty")
    return value


#: Arguments of vLLM that change how a server starts, and not what it does.
_BESIDE = {"model", "load_format", "skip_tokenizer_init", "dtype", "disable_log_stats", "seed", "tokenizer",
           "trust_remote_code", "served_model_name", "hf_overrides"}


@frozen
class ServerSpec:
    """The server of recordings, which their files do not describe; `oracle` is written as in a scenario."""

    gpu: str = "h200"
    engine: str = "vllm-0.22"
    host: str = "default"
    oracle: Any = None


def deployment_of(recording: Recording, server: ServerSpec) -> tuple[Deployment, list[str]]:
    """The deployment of *recording* on *server*, and the names of its arguments that are not simulated.

    Raises KsimError for a model or settings that cannot be simulated.
    """
    serve, others = serve_table(recording)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(recording.config))
        table: dict[str, Any] = {"model": str(path), "gpu": server.gpu, "engine": server.engine,
                                 "host": server.host, "serve": serve, "workload": ANY_WORKLOAD}
        if server.oracle is not None:
            table["oracle"] = server.oracle
        deployment = Deployment.of(Scenario.of(table, str(recording.path)))
    limits(deployment.serve, deployment.version)  # refuses what vLLM would not start with
    return deployment, sorted({*others} - _BESIDE)


#: Seconds of the scheduler's own call for a batch that only decodes: a call, a sequence, the first block that a
#: sequence begins, each such block, and a block that all sequences have in common, which vLLM counts (a lone sequence
#: has all its own).  The least absolute error of logarithms, over the calls of llama-3.1-8b and qwen3-30b-a3b.
CALL, SEQUENCE, FIRST_BLOCK, BLOCK, COMMON_BLOCK = 49e-6, 6.3e-6, 17e-6, 4e-6, 0.033e-6
#: A call's pace is the median of so many around it: slow phases last 0.1 to 5 s, and single calls may be late.
AROUND = 9
#: Tokens of a KV block in recordings.
BLOCK_TOKENS = 16


def pace_of(run: RecordedRun) -> Pace:
    """How fast the host of *run* was, by its scheduler's own CPU time, beside that of the same calls in other runs.

    Neither latencies nor the time from step to step are looked at.  Only batches that decode tell: what a prompt costs
    the scheduler depends on what it finds cached.  Until a call tells, the pace is 1.
    """
    told = [*_timed(run.steps)]
    if not told:
        return Pace()
    since, ratios = zip(*told, strict=True)
    half = AROUND // 2
    paces = [median(ratios[max(place - half, 0):place + half + 1]) for place in range(len(ratios))]
    return Pace((1.0, *paces), (since[0], *since))


def _timed(steps: Iterable[Scheduled]) -> Iterator[tuple[float, float]]:
    """When calls that only decode began, and how many times as long as others of their kind they took."""
    free: int | None = None
    for step in steps:
        begun = max(free - step.free, 0) if free is not None and step.free is not None else 0
        free = step.free
        if step.decodes and not step.chunks and step.seconds:
            common = step.decode_tokens / BLOCK_TOKENS if step.decodes == 1 else 0.0
            usual = CALL + SEQUENCE * step.decodes + FIRST_BLOCK * (begun > 0) + BLOCK * begun + COMMON_BLOCK * common
            yield step.start, step.seconds / usual


def simulate(deployment: Deployment, run: RecordedRun) -> Result:
    """Serve the requests of *run* with *deployment*, whose host is as fast as that of the run was."""
    scenario = deployment.scenario
    scenario = evolve(scenario, workload=evolve(scenario.workload, max_concurrency=run.concurrency))
    return play(evolve(deployment, scenario=scenario, host=evolve(deployment.host, pace=pace_of(run))), requests(run))


def requests(run: RecordedRun) -> Iterator[Request]:
    """The requests of *run* at their recorded times; with a limited concurrency, the client sends them when it may."""
    for number, sent in enumerate(run.requests):
        blocks = (sent.prompt + sent.output) // 16
        shared = sent.prefix // 16 if sent.prefix_group is not None else 0
        names = [(run.name, "shared", sent.prefix_group, i) if i < shared else (run.name, sent.index, i)
                 for i in range(blocks + 1)]
        arrival = 0.0 if run.concurrency else max(0.0, sent.sent)
        yield Request(number, arrival, sent.prompt, sent.output, names, 16)

"""Measured serving runs: the rows of a table of silicon samples.

What is assumed about measured runs: the content of benchmarks/research/recipes/silicon.toml.

From a measured run to a scenario that simulates it, with all that its row does not say.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from benchmarks.research import RECIPES, of_sglang
from benchmarks.research.silicon.workers import Split, Whole
from ksim.calibration.datasheet import merge
from ksim.calibration.reading.frames import Frame, load
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, DataError, KsimError
from ksim.scenario.scenario import Scenario
from ksim.specs.shard import QUANTIZATIONS

__all__ = ["Acceptance", "Backend", "NotRun", "Recipes", "Rule", "Source", "recipes"]


_TEXTS = ("id", "backend", "backend_version", "model_path", "system", "precision", "mode", "source", "group", "flags")
_COUNTS = ("isl", "osl", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "concurrency")
_TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
#: Columns that a table may lack: every row is then a measurement of its own, without flags, from an unknown source.
_OPTIONAL = {"backend_version", "precision", "source", "group", "flags", "primary"}


@frozen
class Row:
    """A measured run, with the names of its source, sizes in tokens, GPUs and requests, and times in seconds.

    `prompt` and `output` are the nominal tokens of a request.  `concurrency` is the number of requests in flight over
    all GPUs; 0 where it is not known.  `attention_dp` is 0 in rows with the flag "dp0".  `primary` is False for a copy
    of another row.  `split` is the deployment of a disaggregated run, None without a table of worker counts; `whole`
    that of another run, None where no table has it.
    """

    id: str
    backend: str
    version: str
    model_path: str
    system: str
    precision: str
    mode: str
    source: str
    group: str
    flags: str
    primary: bool
    prompt: int
    output: int
    tensor: int
    pipeline: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    concurrency: int
    ttft: float
    tpot: float
    split: Split | None = None
    whole: Whole | None = None

    @property
    def gpus(self) -> int:
        """GPUs of a disaggregated deployment; 0 where they are not known."""
        return self.split.gpus if self.split else 0

    @property
    def speculation(self) -> str:
        """How it decoded speculatively, "none", or "" where that is not known."""
        deployed = self.split or self.whole
        return deployed.speculation if deployed else ""


def read(path: Path) -> list[Row]:
    """Read the rows of the table at *path*, Parquet or CSV.

    Raises DataError for a file that cannot be read, a missing column, and an impossible value.
    """
    frame = load(path)
    if missing := [name for name in (*_TEXTS, *_COUNTS, *_TIMES) if name not in frame and name not in _OPTIONAL]:
        raise DataError(str(path), f"has no column {missing[0]!r}; a table of silicon samples has"
                                   f" {', '.join((*_TEXTS, *_COUNTS, *_TIMES))}")
    seen: set[str] = set()
    rows = [_row(str(path), values) for values in _records(frame)]
    for row in rows:
        if row.id in seen:
            raise DataError(str(path), f"row {row.id}: column 'id' names two rows")
        seen.add(row.id)
    return rows


def reference(path: Path) -> dict[str, tuple[float, float]]:
    """Another simulator's answers: TTFT and TPOT in seconds by row id; raises DataError as `read` does."""
    frame = load(path)
    names = [name for name in frame.names if name != "id"]
    ttft, tpot = ([name for name in names if name.endswith(f"{what}_ms")] for what in ("ttft", "tpot"))
    if "id" not in frame or len(ttft) != 1 or len(tpot) != 1:
        raise DataError(str(path), "expected the columns id, *ttft_ms and *tpot_ms, one each, and found"
                                   f" {', '.join(frame.names)}")
    answers = {}
    for name, *times in zip(frame.texts("id").tolist(), frame.numbers(ttft[0]).tolist(),
                            frame.numbers(tpot[0]).tolist(), strict=True):
        if not all(math.isfinite(time) and time > 0 for time in times):
            raise DataError(str(path), f"row {name}: a time is not above 0 ms: {times}")
        answers[name] = (times[0] / 1e3, times[1] / 1e3)
    return answers


def _records(frame: Frame) -> Iterator[dict[str, Any]]:
    """The rows of *frame* as plain values; None for a missing number, "" for a missing text."""
    columns: dict[str, list[Any]] = {}
    for name in _TEXTS:
        columns[name] = frame.texts(name).tolist() if name in frame else [""] * len(frame)
    for name in (*_COUNTS, *_TIMES):
        columns[name] = [None if math.isnan(value) else value for value in frame.numbers(name).tolist()]
    primary = frame.texts("primary").tolist() if "primary" in frame else ["true"] * len(frame)
    columns["primary"] = [text.lower() in ("true", "1") for text in primary]
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _row(where: str, values: Mapping[str, Any]) -> Row:
    name = values["id"]
    if not name:
        raise DataError(where, "a row has no 'id'")

    def checked(column: str, sound: Callable[[float], bool], wanted: str, default: float | None = None) -> float:
        value = default if values[column] is None else values[column]
        if value is None or not math.isfinite(value) or not sound(value):
            raise DataError(where, f"row {name}: column {column!r} is {value}; expected {wanted}")
        return float(value)

    def count(column: str, least: int, default: int | None = None) -> int:
        return int(checked(column, lambda value: value >= least and value == int(value),
                           f"a whole number from {least} on", default))

    def time(column: str) -> float:
        return checked(column, lambda value: value > 0, "milliseconds above 0") / 1e3

    if values["mode"] not in ("agg", "disagg"):
        raise DataError(where, f"row {name}: column 'mode' is {values['mode']!r}; expected 'agg' or 'disagg'")
    whole = 0 if values["mode"] == "disagg" else None  # prefill and decode workers have columns of their own
    return Row(
        id=name, backend=values["backend"], version=values["backend_version"], model_path=values["model_path"],
        system=values["system"], precision=values["precision"], mode=values["mode"], source=values["source"],
        group=values["group"] or name, flags=values["flags"], primary=values["primary"],
        prompt=count("isl", 1), output=count("osl", 1), tensor=count("tp_size", 0 if whole == 0 else 1, whole),
        pipeline=count("pp_size", 0 if whole == 0 else 1, whole or 1), attention_dp=count("attention_dp_size", 0, 1),
        moe_tp=count("moe_tp_size", 0, 1), moe_ep=count("moe_ep_size", 0, 1),
        concurrency=count("concurrency", 0, 0), ttft=time("silicon_ttft_ms"), tpot=time("silicon_tpot_ms"))


class NotRun(KsimError):
    """Why a row has no scenario; rows with the same reason have the same text."""


@frozen
class Backend:
    """How an engine is simulated: a release, a host, and the settings that differ from vLLM's defaults."""

    engine: str
    host: str
    serve: Mapping[str, Any] = field(factory=dict)


@frozen
class Source:
    """The load of the runs from one source.

    Lengths are uniform between two shares of the nominal length.  A run sends `waves` times its concurrency of prompts,
    and starts with as many at once as its concurrency allows.  Its latencies are the `statistic` over requests.  With
    `ignore_eos`, its requests say that no stop token ends them.
    """

    prompt: tuple[float, float]
    output: tuple[float, float]
    waves: int
    statistic: str
    text: str
    ignore_eos: bool = False


@frozen
class Rule:
    """Settings of the rows whose fields have one of the values in `when`; the data file lists fields and values.

    `engine` and `host` replace those of the backend.  `queued` requests are in flight beyond the concurrency that a row
    states.  `output` replaces the shares of the source.
    """

    when: Mapping[str, tuple[str, ...]]
    serve: Mapping[str, Any]
    text: str
    queued: int = 0
    output: tuple[float, float] | None = None
    engine: str = ""
    host: str = ""


@frozen
class Acceptance:
    """The chance that a draft of a model and all before it are accepted, place by place, in all of the model's runs."""

    rates: tuple[float, ...]
    text: str


@frozen
class Recipes:
    """What is assumed about measured runs; the data file says where each assumption comes from."""

    models: Mapping[str, str]
    gpus: Mapping[str, str]
    quantizations: Mapping[str, str]
    backends: Mapping[str, Backend]
    sources: Mapping[str, Source]
    rules: tuple[Rule, ...]
    acceptances: Mapping[str, Acceptance]

    def model(self, row: Row) -> str:
        """The catalogue's name of the row's checkpoint; where no pattern matches, the last part of its path."""
        path = row.model_path.lower()
        return next((name for pattern, name in self.models.items() if re.search(pattern, path)),
                    path.rpartition("/")[2])

    def source(self, row: Row) -> tuple[str, Source]:
        """The row's source and its name; raises NotRun for an unknown source."""
        for name, source in self.sources.items():
            if row.source.startswith(name):
                return name, source
        raise NotRun(f"source {row.source!r} has no known load")


@cache
def recipes() -> Recipes:
    return catalog.value(Recipes, "recipes", str(RECIPES / "silicon.toml"))


#: InferenceX sets `max_model_len` to so much more than prompt and output (benchmarks/single_node/gptoss_fp4_h200.sh).
_SLACK = 200
#: GPUs of the largest single node in the source; rows with more are deployments over several nodes.
_NODE = 8
#: A run that generates at most so many tokens is simulated whole; the median run of the silicon samples then takes a
#: second.
_WHOLE = 250_000
#: The fewest waves of a run that is cut: the burst, three in between, and the last.
_FEWEST = 5


def one_engine(row: Row) -> Scenario:
    """The scenario of a *row* whose engine prefills and decodes; raises NotRun, with the reason, for another."""
    _check(row)
    return checked(row, table_of(row))


def table_of(row: Row) -> dict[str, Any]:
    """The table of the scenario of *row*."""
    known = recipes()
    name, source = known.source(row)
    backend, gpu = _named("backend", row.backend, known.backends), _named("system", row.system, known.gpus)
    rules = _rules(row, known, name)
    engine, host = ([getattr(one, key) for one in (backend, *rules) if getattr(one, key)][-1]
                    for key in ("engine", "host"))
    return {
        "model": _model(known.model(row)), "gpu": gpu, "engine": engine, "host": host,
        "serve": _serve(row, known, backend), "workload": _workload(row, source, rules),
    }


def checked(row: Row, table: Mapping[str, Any]) -> Scenario:
    """The scenario of a *table*; raises NotRun for a setting that ksim refuses."""
    try:
        return Scenario.of(as_its_engine(table), row.id)
    except ConfigError as error:
        raise NotRun(f"a setting is not simulated: {error.args[0].partition(': ')[2]}: {error.args[1]}") from None


def as_its_engine(table: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with settings of SGLang's scheduler, where its engine has that."""
    if not table["engine"].startswith("sglang"):
        return dict(table)
    pools = {name: {**pool, "serve": of_sglang({**table["serve"], **pool["serve"]})}
             for name, pool in table.get("pools", {}).items()}
    return {**table, **({"pools": pools, "serve": {}} if pools else {"serve": of_sglang(table["serve"])})}


def _check(row: Row) -> None:
    if not row.concurrency:
        raise NotRun("its concurrency is not known")
    if not row.attention_dp:
        raise NotRun("its attention_dp_size is 0")
    if row.tensor > _NODE and not _drafts(row):
        raise NotRun(f"tp_size above {_NODE} is a deployment over several nodes")


def widened(serve: dict[str, Any], tokens: int | None = None) -> dict[str, Any]:
    """*serve* with CUDA graphs in tokens, not in sequences as scripts state them.

    Each sequence has *tokens* more than one, by default those that it drafts.
    """
    most, config = serve.get("max_cudagraph_capture_size"), serve.get("speculative_config")
    drafts = (config["num_speculative_tokens"] if config else 0) if tokens is None else tokens
    return {**serve, "max_cudagraph_capture_size": most * (1 + drafts)} if most and drafts else serve


def _drafts(row: Row) -> bool:
    """Whether *row* decodes speculatively, as far as is known; then the table that says so has its parallelism too."""
    return row.speculation not in ("", "none")


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise NotRun(f"{kind} {name!r} is not known (known: {', '.join(known)})")
    return known[name]


def _model(name: str) -> str:
    if name not in catalog.entries("models"):
        raise NotRun(f"the catalogue has no model {name!r}")
    return name


def _serve(row: Row, known: Recipes, backend: Backend) -> dict[str, Any]:
    """The engine's settings: those of the backend, those of the row, then those of the rules."""
    name, source = known.source(row)
    serve = {**backend.serve, "quantization": _quantization(row, known), **_parallelism(row),
             "max_model_len": round(max(source.prompt) * row.prompt + max(source.output) * row.output) + _SLACK}
    for rule in _rules(row, known, name):
        serve = merge(serve, own(rule.serve, {"concurrency": row.concurrency, "tensor": row.tensor, **serve,
                                              "graphs": graphs(row.concurrency), "twice_prompt": 2 * row.prompt}))
    return fitted(widened(accepting(row, serve)))


def accepting(row: Row, serve: dict[str, Any]) -> dict[str, Any]:
    """*serve* with the acceptance of the row's model, if it drafts.

    Raises NotRun where the row decodes speculatively, and its number of drafts or its acceptance is not known.
    """
    config, model = serve.get("speculative_config"), recipes().model(row)
    if not _drafts(row):
        return serve
    if config is None:
        raise NotRun(f"how many tokens {row.backend} drafts for {model} is not known")
    if model not in recipes().acceptances:
        raise NotRun(f"how many drafts {model} accepts is not known")
    rates = recipes().acceptances[model].rates[:config["num_speculative_tokens"]]
    return {**serve, "speculative_config": {**config, "rejection_sample_method": "synthetic",
                                            "synthetic_acceptance_rates": [*rates]}}


def fitted(serve: dict[str, Any]) -> dict[str, Any]:
    """*serve* as vLLM's scheduler, which plays all backends, can have it.

    It has neither steps of fewer tokens than sequences nor whole prompts that are longer than a step: TensorRT-LLM's
    longest prompts leave room for the output only in max_model_len.
    """
    serve["max_num_batched_tokens"] = max(serve["max_num_batched_tokens"], serve["max_num_seqs"])
    if serve["max_num_batched_tokens"] < serve["max_model_len"]:
        serve["enable_chunked_prefill"] = True
    return serve


def _rules(row: Row, known: Recipes, source: str) -> list[Rule]:
    """The rules for *row*, in their order."""
    fields = {**fields_of(row, known), "source": source}
    return [rule for rule in known.rules if matches(rule.when, fields)]


def graphs(concurrency: int) -> int:
    """The largest batch of full CUDA graphs for an engine that pads: a multiple of 16."""
    return -(-concurrency // 16) * 16


def fields_of(row: Row, known: Recipes) -> dict[str, str]:
    """The fields of a row that rules may match, as text."""
    return {"model": known.model(row), "backend": row.backend, "gpu": known.gpus[row.system], "table": row.source,
            "precision": row.precision, "version": ".".join(row.version.split(".")[:2]), "release": row.version,
            "tensor": str(row.tensor),
            "lengths": f"{row.prompt}x{row.output}", "experts": str(row.moe_ep), "concurrency": str(row.concurrency),
            "speculation": row.speculation, "shape": row.whole.worker.shape if row.whole else ""}


def matches(when: Mapping[str, Sequence[str]], fields: Mapping[str, str]) -> bool:
    """Whether each field that *when* names has one of the values there."""
    return all(fields[name] in values for name, values in when.items())


def own(serve: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """*serve* with the row's values in place of their names."""
    return {key: own(value, values) if isinstance(value, Mapping) else
            values[value] if isinstance(value, str) and value in values else value for key, value in serve.items()}


def _quantization(row: Row, known: Recipes) -> str:
    name: str = _named("precision", row.precision, known.quantizations)
    if name not in QUANTIZATIONS:
        raise NotRun(f"quantization {name!r} is not simulated")
    return name


def _parallelism(row: Row) -> dict[str, Any]:
    """How the row's GPUs share the work.

    With attention data parallelism, the source counts GPUs twice.  For vLLM, tp_size is then the number of all GPUs,
    each of which has a replica of the attention (`--data-parallel-size=$TP`).  Where experts are sliced over more GPUs
    than the attention, the attention has replicas.  For TensorRT-LLM, attention_dp_size is the product of moe_tp_size
    and moe_ep_size, each of which is at most the number of all GPUs.  Rows with speculative decoding have the
    parallelism of the table that says so.
    """
    if row.whole and _drafts(row):
        return row.whole.worker.settings
    experts: dict[str, Any] = {"enable_expert_parallel": True} if row.moe_ep > 1 else {}
    if row.attention_dp == 1:
        if row.moe_ep > 1 and row.moe_tp > 1:
            experts["expert_parallel_size"] = row.moe_ep
        elif row.moe_tp > row.tensor and row.moe_tp % row.tensor == 0:
            experts = {"data_parallel_size": row.moe_tp // row.tensor}
        return {"tensor_parallel_size": row.tensor, "pipeline_parallel_size": row.pipeline, **experts}
    gpus = row.tensor if row.tensor > 1 else max(row.moe_tp, row.moe_ep, 1)
    return {"tensor_parallel_size": 1, "data_parallel_size": gpus, **experts}


def waves(concurrency: int, output: int, full: int, fewest: int = _FEWEST) -> int:
    """How many of *full* waves of *concurrency* prompts to simulate.

    All of them, where they generate few enough tokens; else fewer, but at least *fewest*.
    """
    return min(full, max(fewest, _WHOLE // (concurrency * output)))


def prompts(concurrency: int, output: int, full: int) -> int:
    """How many prompts the simulated waves have."""
    return concurrency * waves(concurrency, output, full)


def _workload(row: Row, source: Source, rules: Sequence[Rule]) -> dict[str, Any]:
    queued = sum(rule.queued for rule in rules)
    output = next((rule.output for rule in reversed(rules) if rule.output), source.output)
    return {"max_concurrency": row.concurrency + queued,
            "synthetic": {"arrivals": {"process": "burst"}, "ignore_eos": source.ignore_eos,
                          "count": prompts(row.concurrency, row.output, source.waves),
                          "prompt": _lengths(row.prompt, source.prompt), "output": _lengths(row.output, output)}}


def _lengths(nominal: int, shares: tuple[float, float]) -> dict[str, Any]:
    low, high = shares
    if low == high:
        return {"kind": "fixed", "value": low * nominal}
    return {"kind": "uniform", "low": low * nominal, "high": high * nominal}

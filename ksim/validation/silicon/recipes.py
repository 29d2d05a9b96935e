"""From a measured run to the scenario that plays it again, with all that its row does not say."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from attrs import field, frozen

from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, KsimError
from ksim.simulation.scenario import Scenario
from ksim.specs.deployment import QUANTIZATIONS
from ksim.validation.silicon.rows import Row
from ksim.validation.silicon.waves import prompts

#: InferenceX gives `max_model_len` so much more than prompt and output (benchmarks/single_node/gptoss_fp4_h200.sh).
_SLACK = 200
#: GPUs of the largest single node in the source; rows of more are deployments over several nodes.
_NODE = 8


class NotRun(KsimError):
    """Why a row has no scenario; the text is the same for all rows with the same reason."""


@frozen
class Backend:
    """What plays an engine: its release and host, and the settings in which it differs from vLLM's defaults."""

    engine: str
    host: str
    serve: Mapping[str, Any] = field(factory=dict)


@frozen
class Source:
    """How runs of one origin are loaded.

    Lengths lie evenly between two shares of the nominal one; each run sends `waves` times its concurrency of prompts,
    all that it may at once first; its latencies are the `statistic` over requests.
    """

    prompt: tuple[float, float]
    output: tuple[float, float]
    waves: int
    statistic: str
    text: str


@frozen
class Rule:
    """Settings for the rows whose fields have one of the values in `when`; the data file says what both may name.

    `queued` requests are in flight beyond the concurrency that a row states; `output` replaces the source's shares.
    """

    when: Mapping[str, tuple[str, ...]]
    serve: Mapping[str, Any]
    text: str
    queued: int = 0
    output: tuple[float, float] | None = None


@frozen
class Recipes:
    """All that is assumed about measured runs; the data file says where each comes from."""

    models: Mapping[str, str]
    gpus: Mapping[str, str]
    quantizations: Mapping[str, str]
    backends: Mapping[str, Backend]
    sources: Mapping[str, Source]
    rules: tuple[Rule, ...]

    def model(self, row: Row) -> str:
        """The catalogue's name for the row's checkpoint; for one that no pattern knows, the last part of its path."""
        path = row.model_path.lower()
        return next((name for pattern, name in self.models.items() if re.search(pattern, path)),
                    path.rpartition("/")[2])

    def source(self, row: Row) -> tuple[str, Source]:
        """How the row's run was loaded, and the name of that; raises NotRun for an origin that is not known."""
        for name, source in self.sources.items():
            if row.source.startswith(name):
                return name, source
        raise NotRun(f"source {row.source!r} has no known load")


@cache
def recipes() -> Recipes:
    return structure(Recipes, catalog.load("recipes", "silicon"), "recipes/silicon")


def scenario(row: Row) -> Scenario:
    """The scenario of *row*; raises NotRun with a reason for rows that cannot be played."""
    _check(row)
    known = recipes()
    name, source = known.source(row)
    backend = _named("backend", row.backend, known.backends)
    table = {
        "model": _model(known.model(row)), "gpu": _named("system", row.system, known.gpus), "engine": backend.engine,
        "host": backend.host, "serve": _serve(row, known, backend),
        "workload": _workload(row, source, _rules(row, known, name)),
    }
    try:
        return Scenario.of(table, row.id)
    except ConfigError as error:
        raise NotRun(f"a setting is not simulated: {error.args[0].partition(': ')[2]}: {error.args[1]}") from None


def _check(row: Row) -> None:
    if row.mode != "agg":
        raise NotRun("disaggregated: prefill and decode on workers of their own are not simulated")
    if not row.concurrency:
        raise NotRun("its concurrency is not known")
    if not row.attention_dp:
        raise NotRun("its attention_dp_size is 0")
    if row.tensor > _NODE:
        raise NotRun(f"tp_size above {_NODE} is a deployment over several nodes")


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise NotRun(f"{kind} {name!r} is not known (known: {', '.join(known)})")
    return known[name]


def _model(name: str) -> str:
    if name not in catalog.entries("models"):
        raise NotRun(f"the catalogue has no model {name!r}")
    return name


def _serve(row: Row, known: Recipes, backend: Backend) -> dict[str, Any]:
    """The engine's settings: what the backend does differently, the row's own, then what the scripts set."""
    name, source = known.source(row)
    serve = {**backend.serve, "quantization": _quantization(row, known), **_parallelism(row),
             "max_model_len": round(max(source.prompt) * row.prompt + max(source.output) * row.output) + _SLACK}
    for rule in _rules(row, known, name):
        serve |= _own(rule.serve, {"concurrency": row.concurrency, "tensor": row.tensor,
                                   "graphs": _graphs(row.concurrency), "twice_prompt": 2 * row.prompt, **serve})
    # vLLM's scheduler, which plays all backends, has neither steps of fewer tokens than sequences nor whole prompts
    # that are longer than a step: TensorRT-LLM's longest prompts leave room for the output only in max_model_len.
    serve["max_num_batched_tokens"] = max(serve["max_num_batched_tokens"], serve["max_num_seqs"])
    if serve["max_num_batched_tokens"] < serve["max_model_len"]:
        serve["enable_chunked_prefill"] = True
    return serve


def _rules(row: Row, known: Recipes, source: str) -> list[Rule]:
    """The rules for *row*, in their order."""
    fields = {**_fields(row, known), "source": source}
    return [rule for rule in known.rules if _matches(rule, fields)]


def _graphs(concurrency: int) -> int:
    """The batch that whole graphs must hold where an engine pads: more than vLLM, whose largest is no larger."""
    return -(-concurrency // 16) * 16


def _fields(row: Row, known: Recipes) -> dict[str, str]:
    """What rules may ask of a row, as texts."""
    return {"model": known.model(row), "backend": row.backend, "gpu": known.gpus[row.system],
            "precision": row.precision, "version": ".".join(row.version.split(".")[:2]),
            "lengths": f"{row.prompt}x{row.output}", "tensor": str(row.tensor), "table": row.source,
            "experts": str(row.moe_ep), "concurrency": str(row.concurrency)}


def _matches(rule: Rule, fields: Mapping[str, str]) -> bool:
    return all(fields[name] in values for name, values in rule.when.items())


def _own(serve: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """*serve* with the row's own values in place of their names."""
    return {key: _own(value, values) if isinstance(value, Mapping) else
            values[value] if isinstance(value, str) and value in values else value for key, value in serve.items()}


def _quantization(row: Row, known: Recipes) -> str:
    name: str = _named("precision", row.precision, known.quantizations)
    if name not in QUANTIZATIONS:
        raise NotRun(f"quantization {name!r} is not simulated")
    return name


def _parallelism(row: Row) -> dict[str, Any]:
    """How the row's GPUs share the work.

    With attention data parallelism the source counts GPUs twice over: vLLM's tp_size is then all GPUs of the node, each
    a replica of the attention with `--data-parallel-size=$TP`; where experts are sliced over more GPUs than attention,
    the attention has replicas; of TensorRT-LLM's, attention_dp_size is the product of
    moe_tp_size and moe_ep_size, each of which is at most all GPUs.
    """
    experts: dict[str, Any] = {"enable_expert_parallel": True} if row.moe_ep > 1 else {}
    if row.attention_dp == 1:
        if row.moe_ep > 1 and row.moe_tp > 1:
            experts["expert_parallel_size"] = row.moe_ep
        elif row.moe_tp > row.tensor and row.moe_tp % row.tensor == 0:
            experts = {"data_parallel_size": row.moe_tp // row.tensor}
        return {"tensor_parallel_size": row.tensor, "pipeline_parallel_size": row.pipeline, **experts}
    gpus = row.tensor if row.tensor > 1 else max(row.moe_tp, row.moe_ep, 1)
    return {"tensor_parallel_size": 1, "data_parallel_size": gpus, **experts}


def _workload(row: Row, source: Source, rules: Sequence[Rule]) -> dict[str, Any]:
    queued = sum(rule.queued for rule in rules)
    output = next((rule.output for rule in reversed(rules) if rule.output), source.output)
    return {"max_concurrency": row.concurrency + queued,
            "synthetic": {"arrivals": {"process": "burst"}, "count": prompts(row.concurrency, row.output, source.waves),
                          "prompt": _lengths(row.prompt, source.prompt), "output": _lengths(row.output, output)}}


def _lengths(nominal: int, shares: tuple[float, float]) -> dict[str, Any]:
    low, high = shares
    if low == high:
        return {"kind": "fixed", "value": low * nominal}
    return {"kind": "uniform", "low": low * nominal, "high": high * nominal}

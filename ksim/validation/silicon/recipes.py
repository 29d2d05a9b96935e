"""From a measured run to a scenario that simulates it, with all that its row does not say."""

from collections.abc import Mapping, Sequence
from typing import Any

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario import Scenario
from ksim.specs.shard import QUANTIZATIONS
from ksim.validation.silicon.assumptions import Backend, NotRun, Recipes, Rule, Source, recipes
from ksim.validation.silicon.rows import Row

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
    backend = _named("backend", row.backend, known.backends)
    return {
        "model": _model(known.model(row)), "gpu": _named("system", row.system, known.gpus), "engine": backend.engine,
        "host": backend.host, "serve": _serve(row, known, backend),
        "workload": _workload(row, source, _rules(row, known, name)),
    }


def checked(row: Row, table: Mapping[str, Any]) -> Scenario:
    """The scenario of a *table*; raises NotRun for a setting that ksim refuses."""
    try:
        return Scenario.of(table, row.id)
    except ConfigError as error:
        raise NotRun(f"a setting is not simulated: {error.args[0].partition(': ')[2]}: {error.args[1]}") from None


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
        serve |= own(rule.serve, {"concurrency": row.concurrency, "tensor": row.tensor,
                                   "graphs": graphs(row.concurrency), "twice_prompt": 2 * row.prompt, **serve})
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
            "precision": row.precision, "version": ".".join(row.version.split(".")[:2]), "tensor": str(row.tensor),
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
            "synthetic": {"arrivals": {"process": "burst"}, "count": prompts(row.concurrency, row.output, source.waves),
                          "prompt": _lengths(row.prompt, source.prompt), "output": _lengths(row.output, output)}}


def _lengths(nominal: int, shares: tuple[float, float]) -> dict[str, Any]:
    low, high = shares
    if low == high:
        return {"kind": "fixed", "value": low * nominal}
    return {"kind": "uniform", "low": low * nominal, "high": high * nominal}

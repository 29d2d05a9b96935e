"""Simulate measured runs, several at a time.

From a measured run to a scenario that simulates it.

Errors of answers by group of runs, beside those of another simulator.

From a disaggregated run to a scenario with a pool of engines that prefill and one of engines that decode.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import ceil, log2
from statistics import fmean, median
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from benchmarks.research import RECIPES
from benchmarks.research.silicon import rows
from benchmarks.research.silicon.rounding import rounded
from benchmarks.research.silicon.rows import NotRun, Row, one_engine, recipes
from benchmarks.research.silicon.workers import Workers
from ksim.calibration.regression import weighted_median
from ksim.foundation import catalog
from ksim.foundation.errors import KsimError
from ksim.oracles.efficiency.models import Array
from ksim.scenario.hardware import system_of
from ksim.scenario.scenario import Scenario
from ksim.scenario.sizing import pack
from ksim.simulation.processes import run_in_processes
from ksim.simulation.simulate import simulate

#: Waves of prompts of a run, and the fewest of a run that is cut: dozens of ranks make each of them dear.
_WAVES, _FEWEST = 10, 4
#: How TensorRT-LLM's recipes are called: workers that prefill and that decode, the shape of the latter, the most
#: sequences of a rank, and how many tokens it drafts for each.
_NAME = re.compile(r"ctx(\d+)_gen(\d+)_(d?t?e?p\d+)_batch(\d+)(?:_mtp(\d+))?")


@frozen
class Pools:
    """Settings by pool: `serve` of both, then those of the one that prefills and the one that decodes.

    `chunk` tokens are the most that a prefilling worker takes at once; its ranks share them.  `engine` is a release,
    `host` another host; `router` chooses the rank that prefills.
    """

    text: str
    when: Mapping[str, tuple[str, ...]] = field(factory=dict)
    serve: Mapping[str, Any] = field(factory=dict)
    prefill: Mapping[str, Any] = field(factory=dict)
    decode: Mapping[str, Any] = field(factory=dict)
    chunk: int | None = None
    engine: str = ""
    host: str = ""
    router: str = ""


@frozen
class Batches:
    """Recipes by their names, each with the concurrencies that it was run with."""

    when: Mapping[str, tuple[str, ...]]
    names: Mapping[str, tuple[int, ...]]
    text: str


@frozen
class Splits:
    """What is assumed about disaggregated runs beyond what `Recipes` says of all; the data file has the sources."""

    engines: Mapping[str, str]
    hosts: Mapping[str, str]
    connectors: Mapping[str, str]
    batches: tuple[Batches, ...]
    rules: tuple[Pools, ...]


@cache
def splits() -> Splits:
    return catalog.value(Splits, "recipes", str(RECIPES / "disaggregated.toml"))


def two_pools(row: Row) -> Scenario:
    """The scenario of a disaggregated *row*; raises NotRun, with the reason, for a row that cannot be simulated."""
    return rows.checked(row, table_of(row))


def table_of(row: Row) -> dict[str, Any]:
    """The table of the scenario of a disaggregated *row*."""
    prefill, decode = _sides(row)
    # The columns of such a row that say how an engine's GPUs share the work are wrong or empty.
    table = rows.table_of(evolve(row, tensor=1, pipeline=1, attention_dp=1, moe_tp=1, moe_ep=1))
    table["engine"] = splits().engines.get(row.backend, table["engine"])
    table["host"] = splits().hosts.get(row.backend, table["host"])
    waves = rows.waves(row.concurrency, row.output, _WAVES, _FEWEST)
    table["workload"]["synthetic"]["count"] = row.concurrency * waves
    for rule in _rules(row):
        table["serve"] |= rule.serve
        table["engine"] = rule.engine or table["engine"]
        table["host"] = rule.host or table["host"]
        if rule.router:
            table["pair_router"] = {"name": "each_side", "prefill": rule.router}
    table["serve"] = rows.accepting(row, _drafting(row, table["serve"]))
    table["serve"]["kv_transfer_config"] = {"kv_connector": splits().connectors[row.backend]}
    table["pools"] = {"prefill": _pool("prefill", row, prefill, table["serve"]),
                      "decode": _pool("decode", row, decode, table["serve"])}
    system = system_of(table["gpu"])
    nodes = _nodes((prefill, decode), system.gpus_per_node)
    return table | {"nodes": nodes} if nodes > system.nodes else table


def _sides(row: Row) -> tuple[Workers, Workers]:
    """The workers that prefill and those that decode; raises NotRun where they are not known."""
    split = row.split
    if split is None:
        raise NotRun("disaggregated, and no table of worker counts (silicon_join.csv) is beside the file or named")
    if split.prefill is None or split.decode is None:
        raise NotRun("disaggregated, and its numbers of workers are not known")
    if not split.speculation:
        raise NotRun("disaggregated, and whether it decodes speculatively is not known")
    if not row.concurrency:
        raise NotRun("its concurrency is not known")
    return split.prefill, split.decode


def fields_of(row: Row) -> dict[str, str]:
    """The fields of a row that rules may match, as text."""
    known = rows.recipes()
    assert row.split and row.split.prefill and row.split.decode, "only for rows whose workers are known"
    if row.system not in known.gpus or row.backend not in known.backends:
        return {}
    prefill, decode = row.split.prefill, row.split.decode
    return rows.fields_of(row, known) | {"prefill": prefill.shape, "decode": decode.shape,
                                         "workers": f"{prefill.count}+{decode.count}"}


def _rules(row: Row) -> list[Pools]:
    """The rules for *row*, in their order."""
    fields = fields_of(row)
    return [rule for rule in splits().rules if rows.matches(rule.when, {**fields, "batch": str(batch(row))})]


def _pool(role: str, row: Row, side: Workers, serve: Mapping[str, Any]) -> dict[str, Any]:
    """The table of the pool with this *role*; *serve* are the settings of both."""
    own: dict[str, Any] = side.settings
    for rule in _rules(row):
        own |= rows.own(getattr(rule, role), _values(row, side))
        if role == "prefill" and rule.chunk:
            own["max_num_batched_tokens"] = rule.chunk // (side.gpus if side.attention_dp else 1)
    own = rows.widened(own, serve.get("speculative_config", {}).get("num_speculative_tokens", 0))
    whole = rows.fitted({**serve, **own})
    return {"role": role, "replicas": side.count,
            "serve": {key: value for key, value in whole.items() if serve.get(key) != value}}


def _values(row: Row, side: Workers) -> dict[str, int]:
    """What the names in rules stand for: `batch` are the sequences of a decoding rank, `share` twice its share of those
    in flight, to the next multiple of 16."""
    return {"concurrency": row.concurrency, "batch": batch(row),
            "share": rows.graphs(2 * ceil(row.concurrency / side.ranks))}


def batch(row: Row) -> int:
    """The most sequences of a decoding rank: what the name of the row's recipe says.

    Where no recipe is known, the largest power of two that the row's concurrency fills: by their names, recipes are run
    with one to two times as many requests as their ranks take.
    """
    if name := _recipe(row):
        return int(name[4])
    _, decode = _sides(row)
    return int(2 ** max(0, int(log2(row.concurrency / decode.ranks))))


def _drafting(row: Row, serve: dict[str, Any]) -> dict[str, Any]:
    """*serve* with as many drafts as the name of the row's recipe says, where it says so."""
    name = _recipe(row)
    if name is None or not name[5]:
        return serve
    return {**serve, "speculative_config": {**serve["speculative_config"], "num_speculative_tokens": int(name[5])}}


def _recipe(row: Row) -> re.Match[str] | None:
    """The name of the row's recipe, None where it is not known; names of recipes that draft say how many tokens."""
    (prefill, decode), fields = _sides(row), fields_of(row)
    deployed = (prefill.count, decode.count, decode.shape, row.split is not None and row.split.speculation != "none")
    for known in splits().batches:
        for text, runs in known.names.items() if rows.matches(known.when, fields) else ():
            name = _NAME.fullmatch(text)
            assert name, f"{text} is not the name of a recipe"
            if row.concurrency in runs and (int(name[1]), int(name[2]), name[3], bool(name[5])) == deployed:
                return name
    return None


def _nodes(sides: Iterable[Workers], size: int) -> int:
    """How many nodes of *size* GPUs the workers need."""
    units = [unit for side in sides for unit in ([1] * side.ranks if side.attention_dp and side.gpus > size else
                                                 [side.gpus] * side.count)]
    return ceil(pack(units, size)[1] / size)


def scenario(row: Row) -> Scenario:
    """The scenario of *row*; raises NotRun, with the reason, for a row that cannot be simulated."""
    return two_pools(row) if row.mode == "disagg" else one_engine(row)


@frozen
class Latency:
    """The mean and the median of a latency over the requests of a run, in seconds."""

    mean: float
    median: float


@frozen
class Answer:
    """The prediction for a row: latencies in seconds, and tokens per second and GPU; or the `reason` why there is none.

    `took` is how long the simulation took, in seconds.
    """

    row: Row
    reason: str = ""
    ttft: Latency | None = None
    tpot: Latency | None = None
    throughput: float | None = None
    took: float = 0.0

    def predicted(self, what: str, statistic: str = "") -> float:
        """TTFT or TPOT in seconds, by *statistic* or by default the one that the row's source states."""
        latency: Latency = getattr(self, what)
        value: float = getattr(latency, statistic or recipes().source(self.row)[1].statistic)
        return value

    @property
    def rates(self) -> tuple[float, float] | None:
        """Output tokens per second and GPU, predicted and measured; None where the row's GPUs are not known.

        The table has no rates.  In a closed loop they follow from the mean latencies (Little's law): as many requests
        are in flight as the concurrency allows, each for its TTFT and the time of its further tokens.  Both sides are
        worked out alike, so what the law leaves out, the end of the run, does not tell between them.
        """
        if not self.row.gpus or not self.ttft or not self.tpot:
            return None
        low, high = recipes().source(self.row)[1].output
        output = self.row.output * (low + high) / 2
        predicted, measured = (self.row.concurrency * output / (ttft + (output - 1) * tpot) / self.row.gpus
                               for ttft, tpot in ((self.ttft.mean, self.tpot.mean), (self.row.ttft, self.row.tpot)))
        return predicted, measured


def answer(row: Row) -> Answer:
    """Simulate *row*."""
    began = time.perf_counter()
    try:
        played = scenario(row)
        result = simulate(rounded(played) if played.pools else played)
    except NotRun as why:
        return Answer(row, str(why))
    except KsimError as error:
        return Answer(row, _reason(error), took=time.perf_counter() - began)
    requests = result.history.requests
    if not requests.completed.all():
        return Answer(row, "the engine turned requests away, as their cache would not fit",
                      took=time.perf_counter() - began)
    weight = weights(row.concurrency, len(requests), recipes().source(row)[1].waves)
    tokens = float(np.sum(requests.output)) / result.history.duration / result.history.gpus
    ttft, tpot = (Latency(mean(values, weight), median_of(values, weight)) for values in (requests.ttft, requests.tpot))
    return Answer(row, "", ttft, tpot, tokens, time.perf_counter() - began)


def _reason(error: KsimError) -> str:
    """The kind of *error* and its text without figures, so that similar errors read the same."""
    text = str(error).split(":")[0] if type(error).__name__ == "DoesNotFit" else str(error)
    return f"{type(error).__name__}: {text}"


def answers(rows: Sequence[Row], jobs: int) -> Iterator[Answer]:
    """Simulate *rows* in *jobs* processes, the longest first."""
    # With the longest first, no process is left with a long one at the end.
    return run_in_processes(answer, sorted(rows, key=lambda row: (-row.concurrency * row.output, row.id)), jobs)


def weights(concurrency: int, played: int, full: int) -> Array:
    """How many prompts of the *full* waves each of the *played* prompts stands for, in their order.

    The first wave, which arrives all at once, and the last, in which concurrency falls, stand for themselves.  The
    waves in between stand for all waves in between.
    """
    count = played // concurrency
    stands_for = np.ones(played)
    if count < full:
        stands_for[concurrency: played - concurrency] = (full - 2) / (count - 2)
    return stands_for


def mean(values: Array, weight: Array) -> float:
    """The weighted mean of the *values* that are not nan; nan where all are."""
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=weight[known])) if known.any() else float("nan")


def median_of(values: Array, weight: Array) -> float:
    """The weighted median of the *values* that are not nan; nan where all are."""
    known = ~np.isnan(values)
    if not known.any():
        return float("nan")
    return weighted_median(values[known], weight[known])


#: Another simulator's answers: TTFT and TPOT in seconds by row id.
Reference = Mapping[str, tuple[float, float]]


@frozen
class Error:
    """Errors of a quantity in per cent: `bias` is the median signed one; `median` and `mean` are of absolute ones."""

    bias: float
    median: float
    mean: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Error | None":
        """The errors of pairs of predicted and measured values; None without pairs."""
        errors = [100 * (predicted / measured - 1) for predicted, measured in pairs]
        if not errors:
            return None
        return cls(median(errors), median(map(abs, errors)), fmean(map(abs, errors)))


@frozen
class Quantity:
    """TTFT or TPOT of a group of rows: the medians of what was `measured` and `predicted`, in seconds, and the errors.

    `reference` has another simulator's errors where it has answers, and `same` has ours on the same rows.
    """

    measured: float | None
    predicted: float | None
    error: Error | None
    reference: Error | None
    same: Error | None


@frozen
class Score:
    """A group of rows: their number, how many ksim `answered`, and how many of these another simulator answers.

    `throughput` has output tokens per second and GPU, of rows whose GPUs are known.
    """

    name: tuple[str, ...]
    rows: int
    answered: int
    referred: int
    ttft: Quantity
    tpot: Quantity
    throughput: Quantity


def group_of(answer: Answer) -> tuple[str, ...]:
    """The kind of run that *answer* is for."""
    row = answer.row
    return row.model_path, row.system, row.backend, row.precision or "16 bit", *_mode(answer)


def backend_of(answer: Answer) -> tuple[str, ...]:
    """The engine that *answer* is for, disaggregated or not."""
    return answer.row.backend, *_mode(answer)


def tier_of(answer: Answer) -> tuple[str, ...]:
    """The engine and the GPU of a disaggregated run, and how sure its deployment is."""
    return answer.row.backend, answer.row.system, answer.row.split.tier if answer.row.split else ""


def _mode(answer: Answer) -> tuple[str, ...]:
    return () if answer.row.mode == "agg" else (answer.row.mode,)


def scores(answers: Sequence[Answer], key: Callable[[Answer], tuple[str, ...]], statistic: str,
           reference: Reference) -> list[Score]:
    """A score for each value of *key*, in their order."""
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer)
    return [score(name, groups[name], statistic, reference) for name in sorted(groups)]


def score(name: tuple[str, ...], answers: Sequence[Answer], statistic: str, reference: Reference) -> Score:
    """The score of *answers* by a *statistic* over requests; "" takes that of each row's source."""
    answered = [answer for answer in answers if not answer.reason]
    ttft = _quantity(answered, "ttft", statistic, {name: times[0] for name, times in reference.items()})
    tpot = _quantity(answered, "tpot", statistic, {name: times[1] for name, times in reference.items()})
    referred = sum(answer.row.id in reference for answer in answered)
    rates = {answer.row.id: rates for answer in answered if (rates := answer.rates)}
    return Score(name, len(answers), len(answered), referred, ttft, tpot, _compared(rates, {}))


def _quantity(answered: Sequence[Answer], what: str, statistic: str, reference: Mapping[str, float]) -> Quantity:
    return _compared({answer.row.id: (answer.predicted(what, statistic), float(getattr(answer.row, what)))
                      for answer in answered}, reference)


def _compared(pairs: Mapping[str, tuple[float, float]], reference: Mapping[str, float]) -> Quantity:
    """*pairs* of predicted and measured values by row id, beside another simulator's values."""
    referred = {name: pair for name, pair in pairs.items() if name in reference}
    return Quantity(
        median(measured for _, measured in pairs.values()) if pairs else None,
        median(predicted for predicted, _ in pairs.values()) if pairs else None,
        Error.of(pairs.values()),
        Error.of((reference[name], measured) for name, (_, measured) in referred.items()),
        Error.of(referred.values()))

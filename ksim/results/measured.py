"""A finished run as numbers and tables: a row for each request, for each step, and for each choice of a router.

docs/glossary.md describes every number and every column.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from attrs import define, field

from ksim.flow.events import Chosen, Finished, RanksMet, Rejected, Scaled, Seen
from ksim.flow.log import Columns, Log
from ksim.foundation.errors import MissingExtra, UnknownName
from ksim.results.activity import Shares
from ksim.results.arrow import numbers, table, texts
from ksim.results.energy import Energy, energy_summary
from ksim.results.history import History, is_scaled
from ksim.results.kernels import KernelUsage, kernel_table
from ksim.results.metrics import summarise
from ksim.results.numbers import CostRates, LatencyTargets, Summary, fleet_footprint, footprint
from ksim.results.steps import Floats, Ints, each, ints, offsets

if TYPE_CHECKING:
    import pandas

    from ksim.results.ranks import Ranks

Label = str | int | float | bool | None
#: The tables of a run.
TABLES = ("requests", "steps", "kernels", "attribution")


_NUMBERS = re.compile(r"\d+")


@define(eq=False)
class Refusals:
    """Counts of the reasons for rejections; reasons that differ only in their numbers are the same."""

    _counts: dict[str, int] = field(factory=dict)
    _examples: dict[str, str] = field(factory=dict)

    def add(self, reason: str) -> None:
        """Count a rejection."""
        kind = _NUMBERS.sub("#", reason)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._examples.setdefault(kind, reason)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def commonest(self) -> str:
        """The most common reason, with the numbers of the first such request; "" if there is none."""
        kind = max(self._counts, key=self._counts.__getitem__, default="")
        often = "" if self._counts.get(kind) == len(self) else f" ({self._counts[kind]:,} of them)"
        return f"{self._examples[kind]}{often}" if kind else ""


@define(eq=False, slots=False)
class MeasuredRun:
    """A finished run, whose numbers and tables are computed on demand, and once.

    *labels* say what was run (`model_id`, `gpu`, `seed`, `request_rate`, `max_concurrency` and others) and come first
    in the summary.  With a `max_concurrency` the loop was closed, so no queue could keep growing.  *limits* are the
    latency targets of goodput.  *scenario* is the text that `save` keeps beside the results.  *remarks* tell the user
    how the workload was read.  *rates* give emissions and cost of energy, *pool_rates* those of pools that have
    others.
    """

    log: Log = field(repr=False)
    labels: Mapping[str, Label] = field(factory=dict)
    limits: LatencyTargets = field(factory=LatencyTargets)
    scenario: str = field(default="", repr=False)
    remarks: Sequence[str] = ()
    rates: CostRates = CostRates()
    pool_rates: Mapping[str, CostRates] = field(factory=dict)

    @cached_property
    def summary(self) -> Summary:
        """Every number of the run by name; docs/glossary.md defines them."""
        measured = summarise(self.history, self.limits, closed=bool(self.labels.get("max_concurrency")))
        if self.log.gated:
            from ksim.results.features import gateway_summary  # few runs have features, and pay nothing for them

            measured |= gateway_summary(self.history.requests)
        measured |= energy_summary(self.energy)
        if self.history.has_adapters or self.history.tiers:
            from ksim.results.features import Copies, adapter_summary, tier_summary

            measured |= adapter_summary(self.log) | tier_summary(self.log.engines, Copies.of(self.log))
        if self.history.pools:
            from ksim.results.pools import of_fleet, pool_summaries

            measured |= of_fleet(pool_summaries(self.history), measured)
        if self.log.mixed:
            from ksim.results.groups import RequestGroups, with_groups

            groups = RequestGroups(self.limits)
            groups.add(self.history, np.ones(len(self.history.requests), dtype=bool))
            measured = with_groups(measured, groups.summary(self.history.duration))
        if is_scaled(self.history.engines):
            from ksim.results.scaling import decisions

            measured = decisions(measured, self.log)
        if self.log.has(RanksMet):
            from ksim.results.ranks import RankTotals

            totals = RankTotals()
            totals.add(self.log.columns(RanksMet))
            measured |= totals.summary(self.history.gpus, self.history.duration)
        return judged(measured, self.labels, self.limits, self.rates, self.pool_rates)

    @cached_property
    def requests(self) -> pa.Table:
        """One row per request."""
        return request_table(self.history, self.energy)

    @cached_property
    def routing(self) -> pa.Table | None:
        """One row per choice of a router: what it saw, and what it chose; None where it sees nothing."""
        return routing_table(self.log)

    @cached_property
    def scaling(self) -> pa.Table | None:
        """One row per decision of an autoscaler, with what it saw; None for runs in which no replica comes or goes."""
        if not is_scaled(self.history.engines):
            return None
        from ksim.results.scaling import scaling_rows

        return scaling_rows(self.log.columns(Scaled))

    @cached_property
    def replicas(self) -> pa.Table | None:
        """One row per change of the state of a replica; None for the same runs."""
        if not is_scaled(self.history.engines):
            return None
        from ksim.results.scaling import replica_table

        return replica_table(self.history.engines, self.history.duration)

    @cached_property
    def ranks(self) -> "Ranks | None":
        """What each GPU did and whom it waited for; None for runs whose GPUs cannot differ."""
        if not self.log.has(RanksMet):
            return None
        from ksim.results.ranks import Ranks

        return Ranks.of(self.log, self.history.duration)

    @cached_property
    def steps(self) -> pa.Table:
        """One row per step of each engine."""
        return step_table(self.history)

    @cached_property
    def kernels(self) -> pa.Table:
        """One row per kernel with its time, work and joules, and a row each for waiting for the CPU and idle time."""
        return kernel_table(self.history, self.usage)

    @cached_property
    def attribution(self) -> pa.Table:
        """The phases of each completed request's time: one row per request."""
        from ksim.results.attribution import attribution_table

        return attribution_table(self.shares)

    @cached_property
    def energy(self) -> Energy:
        """The joules of each request."""
        return Energy(self.shares)

    @cached_property
    def shares(self) -> Shares:
        """The shares of steps' GPU seconds that belong to decodes and to prompts."""
        return Shares(self.history, self.usage)

    @cached_property
    def refusals(self) -> Refusals:
        """The reasons for rejected requests."""
        found = Refusals()
        for event in self.log.of(Rejected):
            found.add(event.reason)
        return found

    @property
    def served(self) -> bool:
        """Whether any request completed; faster than the summary."""
        return next(iter(self.log.of(Finished)), None) is not None

    @cached_property
    def history(self) -> History:
        """The log as arrays."""
        return History(self.log)

    @cached_property
    def usage(self) -> KernelUsage:
        """The distinct kernels of the run, and how often each ran."""
        return KernelUsage.of(self.history.steps)

    def to_pandas(self, table: str = "requests") -> "pandas.DataFrame":
        """One of the tables (requests, steps, kernels, attribution) as a DataFrame; times in seconds.

        Raises UnknownName for any other table, and MissingExtra if pandas is not installed.
        """
        if table not in TABLES:
            raise UnknownName("table", table, TABLES)
        if find_spec("pandas") is None:
            raise MissingExtra("pandas", "result.to_pandas()")
        return getattr(self, table).to_pandas()


def judged(measured: Summary, labels: Mapping[str, Label], limits: LatencyTargets, rates: CostRates,
           pool_rates: Mapping[str, CostRates] | None = None) -> Summary:
    """The summary of a run: its labels, its targets, what was *measured*, and emissions and cost."""
    targets = {f"slo_{name}_ms": None if limit is None else 1e3 * limit
               for name, limit in (("ttft", limits.ttft), ("tpot", limits.tpot), ("e2el", limits.e2el))}
    costs = fleet_footprint(measured, rates, pool_rates or {}) if "pools" in measured else footprint(measured, rates)
    whole = {**measured, **costs}
    assert not labels.keys() & (targets.keys() | whole.keys()), "a label must not hide a measurement"
    # JSON has no infinity; vLLM writes an unlimited request rate as this word.
    shown = {name: "inf" if label == math.inf else label for name, label in labels.items()}
    return {**shown, **targets, **whole}


def spent_dollars(history: History, joules: float, seconds: float, rates: CostRates,
                  pool_rates: Mapping[str, CostRates]) -> float | None:
    """What *joules* of a run, and its GPUs for *seconds*, cost; None where the rates state neither.

    Pools with rates of their own have the same share of the joules as of those of the whole run.
    """
    amounts = {"energy_joules": joules, "gpus": history.gpus, "duration": seconds, "generated_tokens": 1,
               "completed": 1}
    if pool_rates:
        from ksim.results.pools import pool_summaries

        share = joules / max(float(history.steps.joules.sum()) + history.static_joules, 1e-300)
        pools = {name: {**pool, "energy_joules": share * pool["energy_joules"]}
                 for name, pool in pool_summaries(history).items()}
        costs = fleet_footprint({**amounts, "pools": pools}, rates, pool_rates)
    else:
        costs = footprint(amounts, rates)
    stated = [costs[key] for key in ("energy_dollars", "gpu_dollars") if costs[key] is not None]
    return float(sum(stated)) if stated else None


def request_table(history: History, energy: Energy | None) -> pa.Table:
    """One row per request in order of arrival; null where something did not happen; times in seconds.

    Without *energy*, there are no columns of joules.
    """
    requests = history.requests
    medians, peaks = requests.gap_medians_and_peaks
    asked = requests.requests
    engines = np.append(ints(history.engines, "engine"), -1)
    return table({
        "id": requests.ids,
        "engine": numbers(engines[requests.engine], requests.engine < 0),
        "arrival_s": requests.arrival,
        "prompt_tokens": requests.prompt,
        "output_tokens": requests.output,
        "cached_tokens": numbers(np.nan_to_num(requests.cached).astype(np.int64), np.isnan(requests.cached)),
        **{f"{tier}_tokens": tokens for tier, tokens in history.loaded.items()},
        "received_s": numbers(requests.received, np.isnan(requests.admitted)),
        "queue_s": _nullable(requests.queue),
        "ttft_s": _nullable(requests.ttft),
        "tpot_s": _nullable(requests.tpot),
        "itl_p50_s": _nullable(medians),
        "itl_max_s": _nullable(peaks),
        **({"acceptance_length": _nullable(requests.acceptance_length)} if history.steps.drafted else {}),
        "e2e_s": _nullable(requests.e2e),
        **(_joules(energy) if energy else {}),
        "preemptions": requests.preemptions,
        **({"attempts": requests.attempts, "held_s": requests.held} if history.log.gated else {}),
        "status": texts(requests.status),
        "reason": texts(map(requests.reasons.get, range(len(asked)))),
        **(_split(history, engines) if history.fleet else {}),
        "session": texts(request.session for request in asked),
        "tenant": texts(request.tenant for request in asked),
        **({called: texts(getattr(request, called) for request in asked) for called in ("workload", "model")}
           if history.log.mixed else {}),
        **({"adapter": texts(request.adapter for request in asked)} if history.has_adapters else {}),
        "priority": ints(asked, "priority"),
    })


def _split(history: History, engines: Ints) -> dict[str, pa.Array]:
    """The columns of runs with pools: who prefilled, the bytes of KV that moved, and how long that took."""
    splits, source = history.splits, history.requests.prefill_engine
    moved, seconds = (np.full(len(source), np.nan) for _ in range(2))
    moved[splits.row], seconds[splits.row] = splits.bytes, splits.loaded - splits.began
    return {"prefill_engine": numbers(engines[source], source < 0), "transfer_bytes": _nullable(moved),
            "transfer_seconds": _nullable(seconds)}


def _joules(energy: Energy) -> dict[str, pa.Array]:
    to_first, after = energy.requests.T
    return {"joules": _nullable(to_first + after), "joules_to_first_token": _nullable(to_first)}


def step_table(history: History) -> pa.Table:
    """One row per step, engine by engine; times in seconds from the start of the run; FLOP and bytes of all GPUs."""
    steps = history.steps
    stages = offsets(steps.stages)
    launch = [steps.stage_steps.launch[row] for row in stages[:-1].tolist()]
    paces = np.maximum.reduceat(steps.stage_steps.scaling.time, stages[:-1]) if len(steps) else np.zeros(0)
    return table({
        "engine": ints(history.engines, "engine")[steps.engine],
        "step": steps.index,
        "scheduled_s": steps.scheduled,
        "prepared_s": steps.prepared,
        "start_s": steps.start,
        "end_s": steps.end,
        "taken_s": steps.taken,
        "time_s": steps.time,
        "decodes": steps.decodes,
        "decode_context_tokens": steps.decode_context,
        "prefills": steps.prefills,
        "prefill_tokens": steps.tokens - steps.decodes - steps.drafts,
        "samples": steps.samples,
        **(_verified(history) if steps.drafted else {}),
        **({"images": steps.encoded[:, 0], "encoder_tokens": steps.encoded[:, 1]} if steps.encodes else {}),
        "waiting": steps.waiting,
        "running": steps.running,
        "kv_blocks": steps.blocks,
        "flops": steps.flops,
        "bytes": steps.bytes,
        "joules": steps.joules,
        "watts": steps.watts,
        "host_gap_s": history.host_gaps,
        "launch_wait_s": steps.launch_waits,
        "launch": texts(launch),
        "pace": paces,
    })


def _verified(history: History) -> dict[str, Ints]:
    """The columns of steps in runs that decode speculatively."""
    steps = history.steps
    return {"drafts": steps.drafts, "accepted": steps.verifications[:, 1:].sum(axis=1)}


def _nullable(column: Floats) -> pa.Array:
    return numbers(column, np.isnan(column))


#: What is a share or a number of seconds, and not a count.
_FLOATS = ("kv_usage", "scraped_s", "score")


def routing_table(log: Log) -> pa.Table | None:
    """One row per choice in order of time, with lists that have a number for each engine to choose from.

    None for a run whose router saw nothing, or had nothing to choose from.
    """
    columns = log.columns(Chosen)
    return routing_rows(columns) if len(columns["time"]) else None


def routing_rows(columns: Columns) -> pa.Table:
    """The same from events of kind `Chosen`, of which there are some."""
    seen: Sequence[Seen] = columns["seen"].tolist()
    prefill = columns["prefill_engine"]
    bounds = offsets(each([one.engines for one in seen], len)).astype(np.int32)
    return table({
        "request": columns["request_id"], "attempt": columns["attempt"], "time_s": columns["time"],
        "engine": columns["engine"], "prefill_engine": numbers(prefill, prefill < 0),
        "engines": _lists(bounds, [one.engines for one in seen], np.int64),
        **{name: _lists(bounds, [one.columns[name] for one in seen], np.float64 if name in _FLOATS else np.int64)
           for name in seen[0].columns}})


def _lists(bounds: Any, values: Sequence[Sequence[float]], kind: Any) -> pa.Array:
    """A list of numbers for each row; those that were not asked for are null."""
    flat = np.concatenate([np.asarray(row, kind) for row in values])
    missing = np.isneginf(flat) if kind is np.float64 else flat < 0
    return pa.ListArray.from_arrays(numbers(bounds), numbers(flat, missing))

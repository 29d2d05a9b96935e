"""What holds for every run, as a list of functions of a run."""

import copy
import json
import tomllib
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from attrs import evolve, frozen

from ksim.cluster.cluster import Cluster
from ksim.engine.engine import Engine
from ksim.engine.lookahead_engine import LookaheadEngine
from ksim.flow.events import CUT_OFF, GONE, Admitted, Arrived, Copied, LinkUsed, Prefilled, Transferred
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.results.numbers import LATENCIES, PERCENTILES
from ksim.scenario.scenario import Scenario
from ksim.scheduling.sglang.limits import SglangLimits
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import labels_of, requests_of, serve, simulate, targets_of
from ksim.views.result import Result
from ksim.workload.rows import Ledger
from tests.explore.other_words import OTHER_WORDS, Table, limits_nobody_reaches
from tests.laws.happenings import facts, times

#: Columns and numbers of the summary that are shares.
SHARES = ("mfu", "mbu", "gpu_busy_share", "kv_cache_usage_peak", "kv_cache_usage_mean", "prefix_cache_hit_rate",
          "throttled_share", "slo_attainment", "extrapolated_share")
#: Columns of tokens that came from below the GPUs.
TIERS = ("cpu_tokens", "disk_tokens", "storage_tokens")
#: Seconds by which requests come later.  They are a multiple of every interval of scrapes.
LATER = 64.0
#: As exact as sums of many floats are.
CLOSE: dict[str, Any] = {"rel": 1e-6, "abs": 1e-6}


@frozen
class Run:
    """A run that has ended: its fleet, the cluster as it is at the end, and what happened."""

    fleet: Fleet
    cluster: Cluster
    result: Result

    @property
    def scenario(self) -> Scenario:
        return self.fleet.scenario


def run_of(fleet: Fleet, requests: Iterable[Request] | None = None) -> Run:
    """A run of *fleet*, with its own requests unless there are others."""
    log, scenario = Log(), fleet.scenario
    cluster = serve(fleet, requests_of(fleet, Ledger()) if requests is None else requests, log, lambda: None)
    return Run(fleet, cluster, Result(log, labels_of(fleet), targets_of(scenario), scenario.to_toml(), (), fleet.rates,
                                      fleet.pool_rates))


def requests_are_accounted_for(run: Run) -> None:
    summary, rows = run.result.summary, run.result.requests.to_pylist()
    sent = {request.id: request for request in run.scenario.workload.requests(run.scenario.seed)}
    assert summary["completed"] + summary["failed"] + summary["unfinished"] == len(rows) == len(sent)
    assert summary["unfinished"] == 0
    gone = {row["id"] for row in rows if (row["reason"] or "").startswith(GONE)}
    assert summary.get("aborted", 0) == len(gone) and all(sent[number].aborted is not None for number in gone)
    for row in rows:
        request = sent[row["id"]]
        assert row["prompt_tokens"] == request.prompt or request.images
        if row["status"] == "completed":
            if not (request.n > 1 or request.beam_width):  # outputs of each sequence count
                most = most_output(run.cluster.engines[row["engine"]], row["prompt_tokens"], request)
                sampled, again = min(request.output, most), row.get("attempts", 1) > 1  # its user keeps what it had
                assert row["output_tokens"] == sampled or (again and row["output_tokens"] > sampled)
            assert 0 <= row["cached_tokens"] < row["prompt_tokens"] + request.output
        else:
            gone, split = row["reason"] == GONE, (row.get("prefill_engine", -1) not in (None, -1))
            assert row["reason"] and (gone or split or row["reason"] == CUT_OFF or not row["output_tokens"])
            assert not gone or row["output_tokens"] < request.output_tokens
    done = [row for row in rows if row["status"] == "completed"]
    assert summary["total_output_tokens"] == sum(row["output_tokens"] for row in done)
    assert summary["total_input_tokens"] == sum(row["prompt_tokens"] for row in done)


def most_output(engine: Any, prompt: int, request: Request) -> int:
    """How many output tokens *engine* gives *request* at most, whose prompt has so many tokens."""
    limits, cache = engine.scheduler.limits, engine.scheduler.cache
    if not isinstance(limits, SglangLimits):
        return int(limits.max_model_len) - prompt
    asked, page = request.max_tokens or request.output, cache.block_tokens
    return limits.most_new(prompt, asked, cache.capacity * page, page)


def blocks_are_free(run: Run) -> None:
    """At the end no request waits or runs, and none holds a block."""
    for engine in run.cluster.engines:
        assert isinstance(engine, Engine)
        scheduler = engine.scheduler
        assert not len(scheduler.waiting) and not len(scheduler.running)
        assert scheduler.cache.pool.used == 0


def tokens_are_conserved(run: Run) -> None:
    """Steps compute the tokens of prompts that caches lack, and sample those of outputs."""
    result, summary, steps = run.result, run.result.summary, run.result.steps
    computed, sampled = (int(np.sum(steps[name].to_numpy())) for name in ("prefill_tokens", "samples"))
    assert summary["generated_tokens"] >= summary["total_output_tokens"]
    asked = run.result.history.requests.requests
    if any(request.n > 1 or request.beam_width for request in asked) or summary["failed"] or run.fleet.splits:
        return
    rows = result.requests
    found = [name for name in rows.column_names if name in ("cached_tokens", *TIERS)]
    lacking = sum(rows["prompt_tokens"].to_pylist()) - sum(sum(rows[name].to_pylist()) for name in found)
    assert computed >= lacking
    if not summary["preemptions"]:
        assert computed == lacking
        discarded = sampled - summary["generated_tokens"]
        if "spec_decode_num_drafts" not in summary:
            assert 0 <= discarded <= len(rows) * any(request.max_tokens is not None for request in asked)


def joules_are_conserved(run: Run) -> None:
    """Joules of steps, of kernels and of requests add up to those of the run, and so do those and the GPUs of pools."""
    result, summary = run.result, run.result.summary
    total, static, dynamic = (summary[f"{part}energy_joules"] for part in ("", "static_", "dynamic_"))
    assert total == pytest.approx(static + dynamic, **CLOSE)
    prefill, decode, idle, unattributed = (
        summary[f"{part}_energy_joules"] for part in ("prefill", "decode", "idle", "unattributed"))
    assert min(prefill, decode, idle, unattributed) >= -1e-6 * total
    assert prefill + decode + idle == pytest.approx(total, **CLOSE)
    requests = sum(joules or 0.0 for joules in result.requests["joules"].to_pylist())
    assert requests + idle + unattributed == pytest.approx(total, **CLOSE)
    assert np.sum(result.steps["joules"].to_numpy()) == pytest.approx(dynamic, **CLOSE)
    assert np.nansum(result.kernels["joules"].to_numpy()) == pytest.approx(dynamic, **CLOSE)
    assert np.nansum(result.kernels["static_joules"].to_numpy()) == pytest.approx(static, **CLOSE)
    pools = list(summary.get("pools", {}).values())
    for key in ("energy_joules", "allocated_gpu_seconds", "unused_gpu_seconds") if pools else ():
        assert sum(pool.get(key, 0.0) for pool in pools) == pytest.approx(summary.get(key, 0.0), **CLOSE), key
    assert summary.get("unused_gpu_seconds", 0.0) >= -1e-9


def times_are_monotone(run: Run) -> None:
    """A step is scheduled, prepared, run and taken, one after the other; steps of an engine start in their order.

    Dummy steps, of data-parallel ranks without work, have nothing that is taken.
    """
    steps = run.result.steps
    works = steps["decodes"].to_numpy() + steps["prefills"].to_numpy() > 0
    columns = {name: steps[name].to_numpy()[works] for name in (
        "engine", "scheduled_s", "prepared_s", "start_s", "end_s", "taken_s")}
    names = [name for name in columns if name != "engine"]
    for before, after in pairwise(names):
        assert np.all(columns[after] >= columns[before] - 1e-9), (before, after)
    for engine in np.unique(columns["engine"]):
        for name in names:
            assert np.all(np.diff(columns[name][columns["engine"] == engine]) >= -1e-9), name
    for row in run.result.requests.to_pylist():
        if row["status"] == "completed":
            assert 0 <= row["arrival_s"] <= row["received_s"] + 1e-9
            assert 0 <= row["queue_s"] <= row["ttft_s"] + 1e-9 and row["ttft_s"] <= row["e2e_s"] + 1e-9
            assert row["tpot_s"] is None or row["tpot_s"] >= 0
            assert row["itl_max_s"] is None or 0 <= row["itl_p50_s"] <= row["itl_max_s"] <= row["e2e_s"] + 1e-9
    for name in LATENCIES:
        values = [run.result.summary[f"p{percent}_{name}_ms"] for percent in PERCENTILES]
        assert all(value is None for value in values) or all(low <= high for low, high in pairwise(values))


def numbers_are_within_bounds(run: Run) -> None:
    """No number is infinite, no share but of bandwidth is beyond 0 and 1, and no column of a table is negative."""
    json.dumps(run.result.summary, allow_nan=False)
    for key in SHARES:
        assert run.result.summary[key] is None or -1e-9 <= run.result.summary[key] <= 1 + 1e-9, key
    for table in (run.result.requests, run.result.steps, run.result.kernels):
        for name in table.column_names:
            values = [value for value in table[name].to_pylist() if isinstance(value, int | float)]
            if name not in ("prefill_engine", "priority", "id", "engine"):
                assert all(-1e-9 <= value < float("inf") for value in values), name
            if name.endswith("_share") and name != "bandwidth_share":  # L2 caches are faster than memory
                assert all(value <= 1 + 1e-6 for value in values), name


def attribution_adds_up(run: Run) -> None:
    """The phases of a request last as long as it waited for its first token, and for the others."""
    rows = {row["id"]: row for row in run.result.requests.to_pylist()}
    for phases in run.result.attribution.to_pylist():
        row, seconds = rows[phases.pop("id")], {"to_first": 0.0, "after": 0.0}
        for name, spent in phases.items():
            assert spent is None or spent >= -1e-9, name
            seconds[name.partition(".")[0]] += spent or 0.0
        assert seconds["to_first"] == pytest.approx(row["ttft_s"], abs=1e-8)
        assert sum(seconds.values()) == pytest.approx(row["e2e_s"], abs=1e-8)


def links_conserve_bytes(run: Run) -> None:
    """Pools receive what others sent; links carry it, are never used beyond their capacity, and are idle at the end."""
    summary, log = run.result.summary, run.result.log
    pools = list(summary.get("pools", {}).values())
    sent, received = (sum(pool.get(f"bytes_{way}") or 0.0 for pool in pools) for way in ("sent", "received"))
    assert sent == pytest.approx(received)
    if any(pool["role"] == "prefill" for pool in pools):
        assert received == pytest.approx(summary["bytes_transferred"])
    uses, carried = log.columns(LinkUsed), 0.0
    for link in log.links:
        here = uses["link"] == link.link
        rates, moments = uses["rate"][here], uses["time"][here]
        assert np.all((rates >= 0) & (rates <= link.capacity * (1 + 1e-9))), link.name
        assert not len(rates) or rates[-1] == 0, link.name
        carried += float(np.sum(rates[:-1] * np.diff(moments)))
    transfers = log.columns(Transferred)
    assert np.all(transfers["began"] >= transfers["allocated"]) and np.all(transfers["time"] >= transfers["began"])
    if log.links:
        assert carried >= transfers["bytes"].sum() * (1 - 1e-6)


def loads_are_hits(run: Run) -> None:
    """Tokens that came from tiers are those that first admissions loaded, and the bytes go with them."""
    result = run.result
    found = sum(sum(result.requests[name].to_pylist()) for name in result.requests.column_names if name in TIERS)
    copies = result.log.columns(Copied)
    first = dict[int, int]()
    for event in result.log.of(Admitted):
        first.setdefault(event.request_id, event.sequence)
    leads = [first.get(number, 0) == sequence for number, sequence in zip(
        copies["request_id"].tolist(), copies["sequence"].tolist(), strict=True)]
    loads = (copies["target"] == "gpu") & ~copies["again"].astype(bool) & np.array(leads, bool)
    assert found == copies["tokens"][loads].sum() == result.summary.get("external_prefix_cache_hits", 0)
    assert bool(copies["bytes"][loads].sum()) == bool(found)
    for row in result.requests.to_pylist():
        assert (row["cached_tokens"] or 0) + sum(row.get(name) or 0 for name in TIERS) <= row["prompt_tokens"]


def choices_are_of_candidates(run: Run) -> None:
    rows = run.result.routing.to_pylist() if run.result.routing else []
    known = set(run.result.requests["id"].to_pylist())
    for row in rows:
        assert row["request"] in known and row["engine"] in row["engines"]
        assert len({len(value) for value in row.values() if isinstance(value, list)}) == 1


def it_is_the_same_step_by_step(run: Run) -> None:
    """Engines that go ahead of the clock do what engines do that take every step, but where prompts tie."""
    if any(isinstance(engine, LookaheadEngine) for engine in run.cluster.engines) and not prompts_tie(run):
        stepped = run_of(run.fleet.stepping())
        blocks_are_free(stepped)
        assert facts(run.result.log) == facts(stepped.result.log)
        assert times(run.result.log) == pytest.approx(times(stepped.result.log), rel=1e-9)


def it_is_the_same_in_other_words(run: Run) -> None:
    """Names, orders and what nobody uses change nothing, and times by rounding at most: with a limit engines step.

    Where clients hang up, no limit is added: with one, requests that come at one moment are sent one after the other,
    and others may have gone in between.  Nor is one where prompts tie.
    """
    table, before = tomllib.loads(run.result.scenario), run.result.log
    words = [change for change in OTHER_WORDS
             if change is not limits_nobody_reaches or not (hangs_up(run) or prompts_tie(run))]

    def differs(changes: Iterable[Callable[[Table], None]]) -> bool:
        other = copy.deepcopy(table)
        for change in changes:
            change(other)
        after = run_of(Fleet.of(Scenario.of(other))).result.log
        return after_arrival(after) != after_arrival(before) or not np.allclose(
            times(after), times(before), rtol=1e-12, atol=0, equal_nan=True)

    assert not differs(words), [change.__name__ for change in words if differs([change])]


def prompts_tie(run: Run) -> bool:
    """Whether two engines end prompts for others at the same moment: either may go on first."""
    prefilled = run.result.log.columns(Prefilled)
    ends = {*zip(prefilled["time"].tolist(), prefilled["engine"].tolist(), strict=True)}
    return len({time for time, _ in ends}) < len(ends)


def hangs_up(run: Run) -> bool:
    """Whether a client does."""
    return any(request.aborted is not None for request in run.scenario.workload.requests(run.scenario.seed))


def it_is_the_same_later(run: Run) -> None:
    """Requests that come a minute later, with other contents that are equal where theirs were, end a minute later.

    A router that hashes contents chooses by them, so these stay as they were.

    Not so with scrapes that are late, of which none has arrived at first, or that are lost, which goes by their number;
    nor where clients hang up or search for beams: the front end's constants are round, so what it does ties with turns
    of the engine; nor with a host that takes no time, where all ties; nor where GPUs are slow, or replicas there, from
    or until a moment of the run.
    """
    signals = run.scenario.signals
    if any(map(run.scenario.changes_size, run.scenario.pools)):
        return
    if signals.delay or signals.loss or hangs_up(run) or run.scenario.host == "datasheet":
        return
    requests = [*requests_of(run.fleet, Ledger())]
    if not all(gpu.always for gpu in run.scenario.ranks.slow) or any(request.beam_width for request in requests):
        return
    hashed = "consistent_hash" in run.result.scenario
    later = run_of(run.fleet, [evolve(request, arrival=request.arrival + LATER, chunks=tuple(
        name if hashed else ("other", name) for name in request.chunks)) for request in requests])
    for was, now in ((run.result.requests.sort_by("id"), later.result.requests.sort_by("id")),
                     *zip(steps_by_engine(run), steps_by_engine(later), strict=True)):
        for name in was.column_names:
            before, after = was[name].to_numpy(), now[name].to_numpy()
            assert before.dtype == after.dtype and len(before) == len(after), name
            if before.dtype == float:
                assert np.all(np.isclose(after, before, rtol=1e-9, atol=1e-9, equal_nan=True) | (
                    name.endswith("_s") & np.isclose(after, before + LATER, rtol=0, atol=1e-9))), name
            else:
                assert before.tolist() == after.tolist(), name


def steps_by_engine(run: Run) -> list[pa.Table]:
    """Steps of different engines that start at one time may change places by rounding."""
    steps = run.result.steps
    return [steps.filter(pc.field("engine") == number) for number in range(len(run.cluster.engines))]


def after_arrival(log: Log) -> list[tuple[Any, ...]]:
    """The facts but for what requests bring with them."""
    return [fact for fact in facts(log) if fact[0] is not Arrived]


def its_own_scenario_runs_the_same(run: Run) -> None:
    result = run.result
    again = simulate(Scenario.of(tomllib.loads(result.scenario)))
    assert again.summary == result.summary and again.scenario == result.scenario


def it_can_be_told(run: Run) -> None:
    assert run.result.report() and (run.result.kernels.num_rows or not run.result.steps.num_rows)


LAWS: tuple[Callable[[Run], None], ...] = (
    requests_are_accounted_for, blocks_are_free, tokens_are_conserved, joules_are_conserved, times_are_monotone,
    numbers_are_within_bounds, attribution_adds_up, links_conserve_bytes, loads_are_hits, choices_are_of_candidates,
    it_is_the_same_step_by_step, it_is_the_same_in_other_words, it_is_the_same_later, its_own_scenario_runs_the_same,
    it_can_be_told)

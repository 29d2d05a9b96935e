"""A run whose rows are written while it goes on says what one says that was kept, as far as it goes."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    Failed,
    Finished,
    LinkUsed,
    Preempted,
    Prefilled,
    Received,
    Rejected,
    Released,
    Routed,
    StepBlock,
    Stepped,
    Transferred,
)
from ksim.flow.log import Log
from ksim.results import streaming as module
from ksim.results.energy import ENERGY_KEYS
from ksim.results.metrics import INTERVAL_KEYS, spread
from ksim.results.numbers import LATENCIES, PERCENTILES, POOL_LATENCIES, LatencyTargets
from ksim.results.series import SATURATION_KEYS
from ksim.results.streaming import RESOLUTION, LogHistogram, ParquetLog
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import serve, simulate
from ksim.views.result import Result
from tests.properties import examples

from . import by_hand, fabricate, fleet
from .strategies import fleet_scenarios, fleets

LIMITS = LatencyTargets(ttft=0.2, e2el=2.0)
ORDER = (Arrived, Rejected, Routed, Received, Stepped, Emitted, Prefilled, Transferred, LinkUsed, Released, Failed,
         Finished, Preempted, Admitted)
UNTOLD = {*INTERVAL_KEYS, *SATURATION_KEYS, *ENERGY_KEYS} - {
    "idle_energy_joules", "energy_joules_low", "energy_joules_high"}
ROUGH = {f"{statistic}_{name}_ms" for name in {*LATENCIES, *POOL_LATENCIES}
         for statistic in ("median", *(f"p{percent}" for percent in PERCENTILES))}


def told(log: Log, order=ORDER) -> list:
    """The events of *log* as a run tells them."""
    return sorted(log.events, key=lambda event: (event.time, order.index(type(event))))


def in_stretches(events: list, most: int) -> list:
    """The same, but that engines tell up to so many steps at once, after what follows from the first of them."""
    kept, steps = [], {}
    for event in events:
        own = steps.setdefault(event.engine, []) if isinstance(event, Stepped) else None
        if own is None:
            kept.append(event)
        elif own.append(event) or len(own) == most:
            kept.append(StepBlock.of(steps.pop(event.engine)))
    return kept + [StepBlock.of(own) for own in steps.values()]


def streamed(log: Log, folder, every: int, events: list):
    """The summary and the rows of *log*, written once *every* so many requests or steps."""
    with mock.patch.multiple(module, _REQUESTS=every, _STEPS=every), ParquetLog(folder, LIMITS) as sink:
        sink.engines += log.engines
        for event in events:
            sink.record(event) if isinstance(event, StepBlock) else sink.add(event)
        summary = sink.summary()
    return summary, *rows(folder)


def rows(folder):
    requests, steps = (parquet.read_table(folder / f"{name}.parquet") for name in ("requests", "steps"))
    return requests.sort_by("id"), steps.sort_by([("engine", "ascending"), ("step", "ascending")])


def same(found, expected):
    assert found.schema == expected.schema
    for name in expected.column_names:
        one, other = found[name].to_pylist(), expected[name].to_pylist()
        if expected.schema.field(name).type == "double":
            assert [value is None for value in one] == [value is None for value in other], name
            assert list(filter(None, one)) == pytest.approx(list(filter(None, other)), rel=1e-9, abs=1e-12), name
        else:
            assert one == other, name


def close(found, expected, off: float, least: float = 1e-9):
    known = isinstance(expected, int | float)
    assert found == (pytest.approx(expected, rel=off, abs=least) if known else expected)


def agree(log: Log, folder, every: int, events: list):
    agrees(Result(log, limits=LIMITS), streamed(log, folder, every, events))


def agrees(result: Result, written: tuple) -> None:
    summary, requests, steps = written
    same(requests, result.requests.drop_columns(["joules", "joules_to_first_token"]).sort_by("id"))
    same(steps, result.steps)
    expected = {key: result.summary[key] for key in result.summary if key in summary}
    assert list(summary) == list(expected)
    pools, expected_pools = (run.pop("pools", {}) for run in (summary, expected))
    assert list(pools) == list(expected_pools)
    for one, other in ((summary, expected), *((pools[name], expected_pools[name]) for name in pools)):
        for key in one:
            if key in UNTOLD:
                assert one[key] is None, key
            elif key == "max_output_tokens_per_s" and one[key] is None:
                assert not result.history.requests.completed[0], "only then its seconds have no beginning"
            else:
                close(one[key], other[key], RESOLUTION if key in ROUGH else 1e-9)


@pytest.mark.parametrize("log", [
    fabricate.log(count=20), fabricate.log(count=25, engines=2, ranks=2, preempt_every=11), fabricate.pipelined(),
    fabricate.log(count=30, stages=2, seats=4), by_hand.small(), by_hand.sleepy(), Log([by_hand.ENGINE]),
    fabricate.cut(fabricate.log(count=40), 1.5), fleet.log(count=15, rate=60, preempt_every=4),
    fleet.log(count=15, rate=60, decode_first=True, style=fleet.Style(True, True, True)),
    fabricate.cut(fleet.log(count=40, rate=60), 0.6)])
def test_streamed_runs_say_what_kept_ones_say(log, tmp_path):
    agree(log, tmp_path, 3, told(log))


def test_how_often_rows_are_written_changes_nothing(tmp_path):
    log = fabricate.log(count=25, engines=2, ranks=2, preempt_every=11)
    agree(log, tmp_path, 10_000, told(log))


@given(fleets(), st.integers(5, 50))
@examples(8)
def test_fleets_too(tmp_path_factory, log, every):
    agree(log, tmp_path_factory.mktemp("run"), every, told(log))


@given(fleet_scenarios())
@examples(16)
def test_streamed_runs_of_fleets_say_what_kept_ones_say(tmp_path_factory, scenario):
    """Engines tell their steps long after what follows from them, and in no order between them."""
    folder = tmp_path_factory.mktemp("run")
    with mock.patch.multiple(module, _REQUESTS=5, _STEPS=7), ParquetLog(folder, LIMITS) as sink:
        serve(Fleet.of(scenario), scenario.workload.requests(scenario.seed), sink, lambda: None)
        summary = sink.summary()
    agrees(Result(simulate(scenario).log, limits=LIMITS), (summary, *rows(folder)))


@given(st.integers(1, 30), st.integers(5, 50), st.integers(1, 60))
@examples(8)
def test_steps_may_come_at_once_and_after_the_tokens_that_are_from_them(tmp_path_factory, most, every, preempt):
    log = fabricate.log(count=25, engines=2, preempt_every=preempt)
    agree(log, tmp_path_factory.mktemp("run"), every, in_stretches(told(log), most))


@given(st.lists(st.lists(st.floats(0, 1e6).map(lambda value: value if value > 1e-8 else 0.0), max_size=30), max_size=4))
def test_histograms_know_percentiles_to_their_resolution(parts):
    histogram = LogHistogram()
    for values in parts:
        histogram.add(np.array(values))
    expected = spread("x", np.array([value for values in parts for value in values]))
    for key, value in histogram.spread("x").items():
        close(value, expected[key], RESOLUTION if key not in ("mean_x_ms", "std_x_ms") else 1e-6, 1e-3)


def test_streaming_forgets_requests_and_steps_that_have_ended(tmp_path):
    log = fabricate.log(count=80, rate=5.0)
    with mock.patch.multiple(module, _REQUESTS=20, _STEPS=20), ParquetLog(tmp_path, LIMITS) as sink:
        sink.engines += log.engines
        most = 0
        for event in told(log):
            sink.add(event)
            most = max(most, sum(1 for _ in sink.of(Arrived)), sum(map(len, sink.step_blocks)))
        sink.summary()
    assert most < sum(1 for _ in log.of(Stepped)) / 5

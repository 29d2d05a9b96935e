"""Whom ranks wait for: by hand, by the laws that shares obey, and by what a slow GPU must cost."""

import json
from unittest import mock

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet

from ksim.flow.events import WAITS, ExpertsMoved, RanksMet, RankTimeline
from ksim.flow.log import Log
from ksim.foundation.errors import DataError
from ksim.results import streaming
from ksim.results.numbers import NUMBERS, RANK_WAITS, LatencyTargets
from ksim.results.ranks import FILE, PARTS, Ranks, ShownStep, rank_rows
from ksim.results.streaming import ParquetLog
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream
from ksim.views.result import Result
from tests.properties import examples

from . import by_hand
from .ranks_by_hand import EPLB, SLOW, TIMELINE, met, small, stages


def test_what_gpus_of_the_small_log_did():
    ranks = Result(small()).ranks
    assert {name: seconds.tolist() for name, seconds in ranks.seconds.items()} == {
        "busy": pytest.approx([1.15, 1.25]), "collectives": pytest.approx([0.15, 0.15]),
        "late": pytest.approx([0.1, 0.0]), "requests": [0, 0], "experts": [0, 0],
        "clock": pytest.approx([0.1, 0.0]), "host": pytest.approx([0.0, 0.1]), "link": [0, 0],
        "idle": pytest.approx([3.0, 3.0])}
    assert tuple(ranks.seconds) == PARTS
    assert ranks.last.tolist() == pytest.approx([1 / 3, 1 / 3])
    assert ranks.path == {"kernels": pytest.approx(1.15), "collectives": pytest.approx(0.15), "requests": 0,
                          "experts": 0, "clock": pytest.approx(0.1), "host": pytest.approx(0.1), "link": 0}
    assert ranks.shares()["busy"] == pytest.approx(2.4 / 9)


def test_numbers_of_the_summary_are_shares_of_all_gpu_time():
    plain, summary = Result(by_hand.small()).summary, Result(small()).summary
    added = {"rank_wait_share": pytest.approx(0.2 / 9), "rank_wait_clock_share": pytest.approx(0.1 / 9),
             "rank_wait_host_share": pytest.approx(0.1 / 9),
             **{RANK_WAITS[cause]: 0 for cause in ("requests", "experts", "link")}}
    assert {key: summary[key] for key in summary if key not in plain} == added
    assert {**summary, **plain} == summary
    assert tuple(RANK_WAITS) == WAITS and {*RANK_WAITS.values()} <= NUMBERS.keys()


def test_runs_without_ranks_have_no_file_of_them(tmp_path):
    result = Result(by_hand.small())
    result.save(tmp_path / "run", plots=False, trace=False)
    assert result.ranks is None and not (tmp_path / "run" / FILE).exists()
    assert Ranks.read(tmp_path / "run", 1.0) is None
    assert "slow_step" not in json.loads((tmp_path / "run" / "overview.json").read_text())


@given(stages())
@examples(30)
def test_what_each_gpu_did_adds_up(log):
    """To the run; and the critical path to all steps."""
    duration = float(log.columns(RanksMet)["time"].max()) + 1.0
    ranks = Ranks.of(log, duration)
    assert sum(ranks.seconds.values()) == pytest.approx(np.full(len(ranks), duration))
    assert sum(ranks.path.values()) == pytest.approx(ranks.step_seconds)
    assert all((ranks.seconds[part] > -1e-9).all() for part in ("busy", "collectives", "late", "idle"))
    assert sum(ranks.shares().values()) == pytest.approx(1.0)
    for stage in ranks.stages:
        assert (stage.waited > -1e-9).all() and stage.waited.min(axis=1) == pytest.approx(0.0, abs=1e-9)
        assert set(np.round(stage.last.sum(axis=1), 9)) <= {0.0, 1.0}
        assert (stage.waited[stage.last > 0] == pytest.approx(0.0, abs=1e-8)) or len(stage.gpus) == 1


@given(stages())
@examples(10)
def test_a_file_tells_what_the_log_tells(tmp_path_factory, log):
    folder = tmp_path_factory.mktemp("run")
    parquet.write_table(rank_rows(log.columns(RanksMet)), folder / FILE)
    kept, read = Ranks.of(log, 99.0), Ranks.read(folder, 99.0)
    assert read.gpus.tolist() == kept.gpus.tolist() and read.last.tolist() == kept.last.tolist()
    assert all((read.seconds[part] == kept.seconds[part]).all() for part in PARTS)


def test_a_damaged_file_is_refused_by_name(tmp_path):
    (tmp_path / FILE).write_bytes(b"no table")
    with pytest.raises(DataError, match=f"{FILE}: cannot be read as a table of ranks"):
        Ranks.read(tmp_path, 1.0)


def test_of_two_steps_at_once_the_first_ends_when_the_second_begins():
    """As of engines that share experts, of which one may be ahead."""
    log = Log([by_hand.ENGINE], [met(0.0, 1.0, (0.5, 1.0)), met(0.9, 2.0, (1.0, 1.0))])
    (stage,) = Ranks.of(log, 2.0).stages
    assert stage.seconds.tolist() == pytest.approx([0.9, 1.1])


@pytest.mark.parametrize("every", [1, 2, 9])
def test_streamed_runs_write_the_same_rows_and_numbers(tmp_path, every):
    kept = Result(small(), limits=LatencyTargets())
    with mock.patch.object(streaming, "_MET", every), ParquetLog(tmp_path, LatencyTargets()) as sink:
        sink.engines += small().engines
        for event in small().events:
            sink.add(event)
        summary = sink.summary()
        assert not sink.has(RanksMet)
    assert parquet.read_table(tmp_path / FILE).equals(rank_rows(kept.log.columns(RanksMet)))
    for key in ("rank_wait_share", *RANK_WAITS.values()):
        assert summary[key] == pytest.approx(kept.summary[key])


def test_a_streamed_run_of_a_slow_gpu_waits_as_long(tmp_path):
    scenario = Scenario.of(SLOW)
    result, streamed = simulate(scenario), stream(scenario, tmp_path / "run")
    assert streamed.summary["rank_wait_share"] == pytest.approx(result.summary["rank_wait_share"])
    assert streamed.summary["rank_wait_share"] > 0.01
    assert parquet.read_table(tmp_path / "run" / FILE).num_rows == 4 * len(result.log.columns(RanksMet)["time"])


def test_a_dense_model_waits_for_a_slow_gpu_as_long_as_its_kernels_take_longer():
    """A GPU of 90 % the speed takes a ninth longer for all of its kernels, and the others wait for just that, but for
    what the launches of the last ones keep all ranks for."""
    ranks = simulate(Scenario.of(SLOW)).ranks
    slow = int(np.flatnonzero(ranks.gpus == 2)[0])
    others = np.arange(4) != slow
    busy, waits = ranks.seconds["busy"], ranks.seconds["clock"]
    assert waits[others] == pytest.approx(busy[slow] - busy[others], rel=0.02)
    assert (waits[others] <= (busy[slow] - busy[others]) * (1 + 1e-9)).all()
    (stage,) = ranks.stages
    longer = stage.busy[:, slow, None] / stage.busy[:, others]
    assert np.median(longer, axis=0) == pytest.approx(1 / 0.9)  # some steps wait for their launches besides
    assert ranks.last[slow] > 0.9 and ranks.order[0] == slow
    assert ranks.path["clock"] == pytest.approx(waits[others].max(), rel=1e-6)


def test_the_shown_step_is_the_one_in_which_ranks_waited_longest():
    log = small()
    longer = RankTimeline(TIMELINE.names, *(column + 8.0 for column in (TIMELINE.started, TIMELINE.came,
                                                                         TIMELINE.latest, TIMELINE.left)))
    assert ShownStep.slowest(log, 16).start == 1.5
    log.add(met(9.5, 10.0, (0.35, 0.45), longer, clock=[0.2, 0.0]))
    shown = ShownStep.slowest(log, 16)
    assert (shown.start, shown.seconds, shown.gpus.tolist()) == (9.5, 0.5, [0, 1])
    assert shown.waiting == pytest.approx(np.array([[0.1, 0.0], [0.0, 0.0]]))
    assert shown.ready == pytest.approx(np.array([[0.0, 0.45], [0.0, 0.45]]))
    again = ShownStep.of_content(json.loads(json.dumps(shown.content())))
    assert again.came == pytest.approx(shown.came) and again.names == list(shown.names)
    assert again.loads.shape == (3, 0) and "loads" not in shown.content()


def with_rows(rows) -> ShownStep:
    """`TIMELINE` with these rows of experts, (layers, ranks), as it is shown."""
    return ShownStep.slowest(Log([by_hand.ENGINE], [met(1.5, 2.0, (0.35, 0.45), evolve(TIMELINE, rows=rows))]), 16)


def test_the_shown_step_has_the_loads_of_all_ranks_layer_by_layer():
    """Also of those that are not among the ranks that are shown."""
    shown = with_rows(np.array([[30, 10, 20, 20, 0], [4, 4, 4, 4, 4]]))
    assert shown.loads == pytest.approx(np.array([[30 / 16, 1], [20 / 16, 1], [0, 1]]))


@given(arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(2, 9)), elements=st.integers(0, 10**6)),
       st.integers(1, 1000))
@examples(30)
def test_loads_are_relative_and_do_not_depend_on_the_order_of_ranks(rows, more):
    shown = with_rows(rows)
    fullest, median, emptiest = shown.loads
    known = rows.any(axis=1)
    assert (fullest[known] >= 1 - 1e-12).all() and (emptiest <= 1 + 1e-12).all()
    assert (fullest >= median).all() and (median >= emptiest).all()
    assert with_rows(more * rows[:, ::-1]).loads == pytest.approx(shown.loads)
    again = ShownStep.of_content(json.loads(json.dumps(shown.content())))
    assert again.loads == pytest.approx(shown.loads, abs=1e-5)


def test_a_run_keeps_the_loads_of_its_slow_step(tmp_path):
    result = simulate(Scenario.of(EPLB))
    result.save(tmp_path / "run", plots=False, trace=False)
    step = ShownStep.of_content(json.loads((tmp_path / "run" / "overview.json").read_text())["slow_step"])
    assert step.loads.shape == (3, 48)  # layers of the model, all with experts
    steps = [met for met in result.log.of(RanksMet) if met.timeline is not None]
    (rows,) = (met.timeline.rows for met in steps if met.start == step.start)
    assert step.loads[0] == pytest.approx(rows.max(axis=1) / rows.mean(axis=1), abs=1e-5)
    first = next(iter(result.log.of(ExpertsMoved)))
    window = np.sum([met.timeline.rows for met in steps if met.start < first.start], axis=0)  # each has a timeline
    assert (window.max(axis=1) / window.mean(axis=1)).mean() == pytest.approx(first.before, rel=1e-3)


def test_of_many_ranks_those_that_wait_least_and_most_are_shown():
    clock = np.linspace(0, 0.4, 40)
    column = np.full((40, 1), 1.0)
    timeline = RankTimeline(("",), np.zeros(40), 1.0 - clock[:, None], column, column)
    log = Log([by_hand.ENGINE], [met(0.0, 1.0, 1.0 - clock, timeline, gpus=range(40), clock=clock)])
    assert ShownStep.slowest(log, 4).gpus.tolist() == [0, 1, 38, 39]
    assert ShownStep.slowest(Log([by_hand.ENGINE], [met(0.0, 1.0, (1, 1))]), 4) is None

"""benchmarks.research.ladders: loads as the generator makes them, stages measured by hand, arms refused by name."""

from math import isnan, log, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.research import ladders
from benchmarks.research.ladders import play
from benchmarks.research.ladders.loads import Load
from benchmarks.research.ladders.play import compare, knee
from ksim.foundation.errors import ConfigError, DataError
from ksim.simulation.fleet import Fleet

SHARED = Path(__file__).parents[3] / "shared/data/cluster/ladders.csv"
HEADER = "ladder,run,arm,stage,rate_target_rps,req_s,ttft_mean_s,tpot_mean_ms\n"


def table(path, *lines):
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return path


def test_rows_have_what_was_measured(tmp_path):
    stage, whole = play.read_rows(table(tmp_path / "l.csv", "x,r,a,rate,5,4.5,,7.5", "x,r,a,whole_run,,4,0.5,"))
    assert stage.rate == 5 and stage.measured == {"req_s": 4.5, "tpot_mean_ms": 7.5}
    assert np.isnan(whole.rate) and whole.measured == {"req_s": 4.0, "ttft_mean_s": 0.5}
    assert stage.name == ("x", "r", "a")


def test_tables_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(DataError, match="line 2: column 'req_s' is -1"):
        play.read_rows(table(tmp_path / "a.csv", "x,r,a,rate,5,-1,,"))
    (tmp_path / "b.csv").write_text("ladder,run\nx,r\n")
    with pytest.raises(DataError, match="no column 'arm'"):
        play.read_rows(tmp_path / "b.csv")
    with pytest.raises(ConfigError, match="no ladder that is asked for"):
        ladders.validate(ladders.Question(table(tmp_path / "c.csv", "x,r,a,rate,5,1,,"), ladder="y"))


stages = st.lists(st.sampled_from(["0.5x4", "1x10", "2x4", "3.5x10", "2x7"]), min_size=1, max_size=3).map(" ".join)
loads = st.builds(
    Load, stages=stages, warm_up=st.just("") | stages, question=st.integers(1, 300), output=st.integers(2, 9),
    arrivals=st.sampled_from(["constant", "poisson"]), prefix=st.sampled_from([0, 128, 640]),
    groups=st.integers(0, 3), each=st.integers(1, 3))


def by_stage(load, values):
    """Values of a load's requests, stage by stage."""
    return np.split(np.array(values), np.cumsum([stage.count for stage in load.plan])[:-1])


@given(loads, st.integers(0, 9))
def test_stages_have_their_requests_in_their_time(load, seed):
    requests = list(load.requests(seed))
    assert [request.id for request in requests] == list(range(sum(stage.count for stage in load.plan)))
    arrivals = by_stage(load, [request.arrival for request in requests])
    for start, stage, times in zip(load.starts(), load.plan, arrivals, strict=True):
        assert (times >= start).all() and (times < start + stage.seconds).all() and (np.diff(times) >= 0).all()
        assert len(times) == int(stage.rate * stage.seconds)
    assert {request.prompt for request in requests} <= {load.prefix + load.question}


@given(loads, st.integers(0, 9))
def test_every_stage_sends_the_same_prompts_from_the_first_one(load, seed):
    requests = list(load.requests(seed))
    names = [[requests[place].chunks for place in places] for places in by_stage(load, range(len(requests)))]
    if load.groups:
        period = load.groups * load.each
        longest = max(names, key=len)
        assert all(stage == longest[:len(stage)] for stage in names)
        assert all(longest[place] == longest[place % period] for place in range(len(longest)))
    elif load.prefix + load.question >= 128:
        assert len({chunks for stage in names for chunks in stage}) == len(requests)


def test_prompts_of_a_group_share_its_prefix_alone():
    load = Load(stages="6x1", question=256, output=2, prefix=512, groups=2, each=3)
    requests = list(load.requests(0))
    prefixes = [request.chunks[:4] for request in requests]
    assert len(set(prefixes)) == 2 and sorted(map(prefixes.count, set(prefixes))) == [3, 3]
    assert len({request.chunks[4:] for request in requests}) == 6


def test_pieces_of_a_prompt_end_where_its_prefix_does():
    """As far as engines can tell, which share whole blocks of 16 tokens or more."""
    for prefix, chunk in ((16000, 128), (6304, 32), (6000, 16), (6313, 16)):
        load = Load(stages="2x1", question=300, output=2, prefix=prefix, groups=1, each=2)
        one, other = load.requests(0)
        shared = sum(name == its for name, its in zip(one.chunks, other.chunks, strict=True))
        assert one.chunk_tokens == chunk and shared * chunk == prefix // 16 * 16


@pytest.mark.parametrize("stages, problem", [
    ("", "RATExSECONDS"), ("3 20", "RATExSECONDS"), ("3x20, 4x20", "RATExSECONDS"), ("-3x20", "RATExSECONDS"),
    ("0.1x5", "has no request")])
def test_stages_that_make_no_sense_are_refused(stages, problem):
    with pytest.raises(ValueError, match=problem):
        Load(stages=stages, question=1, output=2)


def test_every_recipe_is_a_fleet_or_says_why_not():
    for setup in ladders.known():
        assert bool(setup.reason) != bool(setup.load), setup.arms
        if not setup.reason:
            fleet = Fleet.of(play.scenario(setup))
            assert sum(len(pool.places) * pool.deployment.serve.gpus for pool in fleet.pools) == 16
    with pytest.raises(play.NotRun, match="gives up after 180 s"):
        play.setup_of(("pd-multi-tier-gpt-oss-120b-h200", "w2-docqa", "pd_multi_tier"), ladders.known())
    with pytest.raises(play.NotRun, match="have no arm of my own of run w1-random"):
        play.setup_of(("pd-multi-tier-gpt-oss-120b-h200", "w1-random", "of my own"), ladders.known())
    with pytest.raises(play.NotRun, match="no recipe for mine; .* --recipes"):
        play.setup_of(("mine", "w1-random", "pd_nixl"), ladders.known())


SMALL = {"model": "llama-3.2-1b", "gpu": "h200", "nodes": 1, "pools": {"servers": {"role": "both", "replicas": 2}}}


@pytest.fixture
def small(monkeypatch):
    """A ladder of two stages on two small engines."""
    known = play.Setup("small", ("r",), ("a",), "", SMALL, Load(
        stages="2x5 4x6", warm_up="2x3", question=300, output=8, counted=6, arrivals="poisson", prefix=128, groups=4),
        pause=7.0)
    other = play.Setup("small", ("r",), ("b",), "", reason="of no interest")
    monkeypatch.setattr(play, "known", lambda: (known, other))
    return known


def test_stages_are_measured_as_the_generator_does(small):
    arm = play.predict((("small", "r", "a"), play.known(), 0))
    assert not arm.reason and set(arm.stages) == {2.0, 4.0}
    for values in arm.stages.values():
        assert values["out_tok_s"] == pytest.approx(6 * values["req_s"])
        assert values["total_tok_s"] == pytest.approx((6 + 428) * values["req_s"])
        assert values["itl_mean_ms"] == pytest.approx(values["tpot_mean_ms"])  # as all answers are equally long
        assert 0 < values["ttft_p50_s"] <= values["ttft_p95_s"] <= values["ttft_p99_s"] < values["e2e_p99_s"]
    spans = [count / arm.stages[rate]["req_s"] for rate, count in ((2.0, 10), (4.0, 24))]
    assert arm.whole["req_s"] == pytest.approx(34 / (sum(spans) + 7.0))
    means = [arm.stages[rate]["ttft_mean_s"] for rate in (2.0, 4.0)]
    assert arm.whole["ttft_mean_s"] == arm.means["ttft_mean_s"] == pytest.approx((10 * means[0] + 24 * means[1]) / 34)
    assert arm.means["req_s"] == pytest.approx(sum(values["req_s"] for values in arm.stages.values()) / 2)


def test_a_report_has_rows_beside_predictions_and_reasons(small, tmp_path):
    path = table(tmp_path / "l.csv", "small,r,a,rate,2,2,0.01,5", "small,r,a,rate,3,2,,", "small,r,a,whole_run,,1,,",
                 "small,r,b,rate,2,2,,", "other,r,a,rate,2,2,,")
    report = ladders.validate(ladders.Question(path))
    assert [cell.row.stage for cell in report.cells] == ["rate", "whole_run"]
    assert report.reasons == {"a stage that its recipe does not have": 1, "of no interest": 1,
                              "there is no recipe for other; write one, and name its file by --recipes": 1}
    errors = report.cells[0].errors
    assert set(errors) == {"req_s", "ttft_mean_s", "tpot_mean_ms"}
    assert errors["req_s"] == pytest.approx(100 * (report.cells[0].predicted["req_s"] / 2 - 1))


def test_errors_are_those_of_what_was_measured():
    cell = ladders.Cell(play.Row("x", "r", "a", "rate", nan, {"req_s": 4.0}), {"req_s": 5.0, "out_tok_s": 3.0})
    assert cell.errors == {"req_s": pytest.approx(25)}


def cells(arm, *stages):
    """Rows of an arm: the rate, what was measured, and what was predicted, throughput and TTFT p90."""
    names = ("out_tok_s", "ttft_p90_s")
    return [ladders.Cell(play.Row("x", "r", arm, "rate", rate, dict(zip(names, measured, strict=True))),
                         dict(zip(names, predicted, strict=True))) for rate, measured, predicted in stages]


def test_ladders_are_compared_by_where_queues_begin_and_by_what_arms_gain():
    plain = cells("rr", (10, (90, 1), (80, 2)), (20, (100, 100), (100, 50)))
    routed = cells("llmd", (20, (250, 0.5), (200, 1)), (30, (300, 0.5), (300, 1)))
    report = {line.what: (line.measured, line.predicted) for line in compare([*plain, *routed])}
    assert report == {
        "rate at which the TTFT p90 of rr passes 10 s": (pytest.approx(15), pytest.approx(10 + 10 * log(5) / log(25))),
        "out_tok_s of llmd over rr at 20/s": (2.5, 2.0), "ttft_p90_s of llmd over rr at 20/s": (0.005, 0.02)}
    assert isnan(knee([(10, {"ttft_p90_s": 11}), (20, {"ttft_p90_s": 12})])) and isnan(knee([]))


@pytest.mark.skipif(not SHARED.exists(), reason="the measured ladders are not here")
def test_the_ladders_have_recipes():
    measured = play.read_rows(SHARED)
    assert len(measured) == 140
    for row in measured:
        try:
            load = play.setup_of(row.name, ladders.known()).load
        except play.NotRun as why:
            assert "recipe" not in str(why)
        else:
            assert np.isnan(row.rate) or row.rate in {stage.rate for stage in load.plan}

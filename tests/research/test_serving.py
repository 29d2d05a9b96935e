"""Recorded runs against our own: what ksim recorded of itself it finds again, and what is slower it misses by that."""

import json

import pytest
from attrs import evolve

from benchmarks.research.serving import comparison, recordings
from benchmarks.research.serving.recordings import ServerSpec
from ksim.foundation.errors import DataError
from ksim.specs.host import Pace
from tests.research.recorded_engines import ARGUMENTS, played, record, run, sent

WARM = run("warm", sent((100, 5)))
FIRST = run("static-100x5-c1", sent((100, 5)))
STATIC = run("static-300x20-c8", sent(*[(300, 20)] * 8))
CLOSED = run("closed-200x30-c3", sent(*[(200, 30)] * 9), concurrency=3)
OPEN = run("poisson-50", sent(*[(150, 25)] * 10, every=0.02))


def test_recordings_of_ksim_itself_are_predicted_exactly(tmp_path):
    """Sent at once, held back to three at a time, and one every 20 ms."""
    record(tmp_path, [WARM, FIRST, STATIC, CLOSED, OPEN])
    verdict = comparison.serving(tmp_path, ServerSpec())
    assert [compared.run for compared in verdict.runs] == [STATIC.name, CLOSED.name, OPEN.name]
    for name in ("ttft_p50_ms", "ttft_p90_ms", "tpot_p50_ms", "throughput", "joules"):
        assert verdict.median_ape(name) == pytest.approx(0.0, abs=1e-6)


def test_errors_are_as_large_as_recordings_are_slower(tmp_path):
    """Everything took 1.25 times as long: we are 20 % too fast, and have 25 % more throughput."""
    record(tmp_path, [FIRST, OPEN], slower=1.25)
    (compared,) = comparison.serving(tmp_path, ServerSpec()).runs
    assert compared.errors.ttft_p50_ms == pytest.approx(-20.0)
    assert compared.errors.tpot_p50_ms == pytest.approx(-20.0)
    assert compared.errors.throughput == pytest.approx(25.0)


def test_warm_ups_and_the_first_static_run_are_left_out_and_named(tmp_path):
    record(tmp_path, [WARM, FIRST, STATIC])
    verdict = comparison.serving(tmp_path, ServerSpec())
    assert verdict.left == (("tiny warm", "holds what an engine does only once"),
                            ("tiny static-100x5-c1", "holds what an engine does only once"))


def test_an_engine_that_would_not_start_is_counted_with_the_reason(tmp_path):
    record(tmp_path, [OPEN])
    record(tmp_path, [OPEN], name="other")
    (tmp_path / "engine_other.json").write_text(
        (tmp_path / "engine_other.json").read_text().replace('"max_num_seqs": "16"', '"max_num_seqs": "9999"'))
    verdict = comparison.serving(tmp_path, ServerSpec())
    assert [compared.recording for compared in verdict.runs] == ["tiny"]
    ((name, reason),) = verdict.left
    assert name == "other" and "max_num_batched_tokens" in reason


def test_recordings_without_a_run_to_compare_are_an_error(tmp_path):
    record(tmp_path, [WARM])
    with pytest.raises(DataError, match="no run that can be simulated: tiny warm: holds what an engine does only"):
        comparison.serving(tmp_path, ServerSpec())


def test_arguments_that_are_not_simulated_are_named(tmp_path):
    record(tmp_path, [OPEN], arguments={**ARGUMENTS, "enable_sleep_mode": True})
    assert comparison.serving(tmp_path, ServerSpec()).remarks == ("tiny: not simulated: enable_sleep_mode",)


def test_recorded_intervals_of_ksim_itself_are_predicted(tmp_path):
    """Each from what was recorded before it; waiting for requests is not compared."""
    record(tmp_path, [FIRST, STATIC, CLOSED, OPEN])
    verdict = comparison.intervals(tmp_path, ServerSpec())
    assert len(verdict.errors) > 100
    assert abs(verdict.errors).max() < 0.5
    waited = {name for _, name, _, idle in verdict.runs if idle}
    assert waited == {CLOSED.name}


def test_an_engine_is_simulated_as_it_resolved_its_settings(tmp_path):
    """Without CUDA graphs and asynchronous scheduling, which its arguments do not say."""
    path = record(tmp_path, [OPEN])
    told = {**json.loads(path.read_text()), "async_scheduling": False, "cudagraph": "NONE", "capture_sizes": []}
    path.write_text(json.dumps(told))
    deployment, _ = recordings.deployment_of(recordings.read(path), ServerSpec())
    serve = deployment.serve
    assert (serve.async_scheduling, serve.cudagraph_mode, serve.cudagraph_capture_sizes) == (False, "NONE", ())
    assert comparison.serving(tmp_path, ServerSpec()).median_ape("tpot_p50_ms") > 1


def test_requests_of_a_group_share_their_prefix_and_no_other_tokens():
    """Of 320 tokens the first 160 are shared: ten blocks."""
    shared = run("prefix", sent(*[(320, 4)] * 3, every=1.0, group=1, prefix=160))
    alone = run("prefix", sent(*[(320, 4)] * 3, every=1.0))
    assert played(shared).history.requests.cached.tolist() == [0, 160, 160]
    assert played(alone).history.requests.cached.tolist() == [0, 0, 0]


def test_gaps_are_weighted_by_the_tokens_that_waited():
    """A hundred decodes waited 10 ms, one waited 500: the slowest hundredth is 10 still.

    With two batches in flight, the tokens of a step are out two calls later: a hundred waited 500.
    """
    steps = [recordings.Scheduled(0.01 * i, 100, 1000, ()) for i in range(3)]
    steps += [recordings.Scheduled(0.03, 1, 10, ()), recordings.Scheduled(0.53, 1, 10, ())]
    one = recordings.RecordedRun("a", None, tuple(sent((10, 2))), tuple(steps), None, None)
    assert comparison.measured(one, depth=1).itl_p99_ms == pytest.approx(10.0)
    assert comparison.measured(one, depth=2).itl_p99_ms == pytest.approx(500.0)


def test_a_closed_loop_sends_requests_when_earlier_ones_end():
    late = run("closed", sent((100, 5), (100, 5), every=99.0), concurrency=1)
    arrivals = [request.arrival for request in recordings.requests(late)]
    assert arrivals == [0.0, 0.0]
    times = played(late).history.requests
    assert times.arrival[1] == times.finished[0]


def _calls(*slower: float, begun: int = 0) -> list[recordings.Scheduled]:
    """Calls that took so many times as long as usual; in each, *begun* of ten sequences begin a block."""
    usual = (recordings.CALL + 10 * recordings.SEQUENCE + recordings.FIRST_BLOCK * (begun > 0)
             + begun * recordings.BLOCK)
    return [recordings.Scheduled(float(place), 10, 1000, (), usual * factor, 500 - begun * place)
            for place, factor in enumerate(slower)]


@pytest.mark.parametrize("begun", [0, 3])
def test_a_host_is_as_slow_as_its_schedulers_calls(begun):
    """Twice as slow from the sixteenth call on; the first has none before it that says how many blocks it began."""
    calls = _calls(*[1.0] * 15, *[2.0] * 15, begun=begun)
    pace = recordings.pace_of(recordings.RecordedRun("a", None, (), tuple(calls), None, None))
    assert [pace.at(moment) for moment in (5.0, 10.0, 20.0, 99.0)] == pytest.approx([1.0, 1.0, 2.0, 2.0])


def test_until_a_call_tells_a_host_is_as_fast_as_it_states():
    calls = [evolve(call, start=call.start + 7.0) for call in _calls(2.0, 2.0)]
    pace = recordings.pace_of(recordings.RecordedRun("a", None, (), tuple(calls), None, None))
    assert [pace.at(moment) for moment in (0.0, 6.9, 7.0)] == pytest.approx([1.0, 1.0, 2.0])


def test_single_late_calls_and_those_with_prompts_do_not_make_a_host_slow():
    calls = _calls(1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0)
    calls.insert(2, evolve(calls[2], chunks=((512, 0),), seconds=1.0))
    pace = recordings.pace_of(recordings.RecordedRun("a", None, (), tuple(calls), None, None))
    assert pace.factors == pytest.approx([1.0] * 8)


def test_a_host_whose_calls_were_not_timed_is_as_fast_as_it_states():
    calls = [evolve(call, seconds=None) for call in _calls(2.0, 2.0)]
    assert recordings.pace_of(recordings.RecordedRun("a", None, (), tuple(calls), None, None)) == Pace()

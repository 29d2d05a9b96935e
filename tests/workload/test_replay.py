"""How a trace is cut, scaled and shaped on its way to a workload."""

from itertools import pairwise

import pytest

from ksim.foundation.config import plain, structure
from ksim.foundation.errors import ConfigError, DataError
from ksim.workload.replay import Replay
from ksim.workload.rows import Ledger
from ksim.workload.statistics import measure

HEADER = "arrival,prompt,output\n"
FOUR = HEADER + "10,100,5\n11,200,5\n13,300,5\n17,400,5\n"
QUANTISED = HEADER + "".join(f"{3 * (row // 10)},{row + 1},1\n" for row in range(200))


def arrivals(replay, seed=0):
    return [request.arrival for request in replay.requests(seed)]


def test_first_request_arrives_at_zero(trace):
    assert arrivals(Replay(trace(FOUR))) == [0, 1, 3, 7]


def test_time_scale_stretches_arrivals_and_delays(trace):
    replay = Replay(trace("arrival,prompt,output,session,delay\n0,1,1,a,\n0,1,1,a,2\n3,1,1,b,\n"), time_scale=2)
    assert [(request.arrival, request.delay) for request in replay.requests(0)] == [(0, 0), (0, 4), (6, 0)]


def test_rate_scales_arrivals_to_that_mean_rate(trace):
    assert arrivals(Replay(trace(FOUR), rate=0.5)) == pytest.approx([0, 6 / 7, 18 / 7, 6])


def test_rate_does_not_count_turns_that_follow_others(trace):
    replay = Replay(trace("arrival,prompt,output,session,delay\n0,1,1,a,\n0,1,1,a,2\n3,1,1,b,\n"), rate=0.1)
    assert measure(replay.requests(0)).arrivals.rate == pytest.approx(0.1)


def test_rate_of_a_burst_cannot_be_set(trace):
    with pytest.raises(DataError, match=r"all requests arrive at once.*leave out rate"):
        list(Replay(trace(HEADER + "1,1,1\n1,1,1\n"), rate=2).requests(0))


def test_limit_reads_no_further(trace):
    assert arrivals(Replay(trace(FOUR), limit=2)) == [0, 1]
    ledger = Ledger()
    list(Replay(trace(FOUR), limit=2).requests(0, ledger))
    assert (ledger.rows, ledger.requests) == (2, 2)


def test_start_and_end_are_seconds_since_the_first_request(trace):
    ledger = Ledger()
    requests = list(Replay(trace(FOUR), start="1 s", end="7 s").requests(0, ledger))
    assert [(request.id, request.arrival, request.prompt) for request in requests] == [(0, 0, 200), (1, 2, 300)]
    assert ledger.outside_window == 2
    assert ledger.remarks() == ["rows outside the window of time, left out: 2"]


@pytest.mark.parametrize(("limits", "lengths"), [
    ({"max_prompt": 250}, [(100, 5), (200, 5)]),
    ({"max_tokens": 305, "overlong": "drop"}, [(100, 5), (200, 5), (300, 5)]),
    ({"max_prompt": 250, "overlong": "clip"}, [(100, 5), (200, 5), (250, 5), (250, 5)]),
    ({"max_tokens": 205, "overlong": "clip"}, [(100, 5), (200, 5), (200, 5), (200, 5)]),
    ({"max_tokens": 4, "overlong": "clip"}, [(1, 3)] * 4),
])
def test_requests_over_a_length_limit_are_dropped_or_clipped(trace, limits, lengths):
    ledger = Ledger()
    requests = Replay(trace(FOUR), **limits).requests(0, ledger)
    assert [(request.prompt, request.output) for request in requests] == lengths
    assert ledger.overlong + ledger.clipped == sum(
        (before, 5) not in lengths for before in (100, 200, 300, 400))


def test_requests_over_a_length_limit_can_be_an_error(trace):
    with pytest.raises(DataError, match="row 3 by arrival, 300 prompt and 5 output tokens, is over the limit"):
        list(Replay(trace(FOUR), max_prompt=250, overlong="error").requests(0))


def test_a_cut_chunk_loses_its_name(trace):
    path = trace('{"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [7, 8, 9]}\n')
    (request,) = Replay(path, max_prompt=1000, overlong="clip").requests(0)
    assert (request.prompt, request.chunks) == (1000, (7,))


class TestSpread:
    def test_ties_are_spread_inside_the_step_of_the_clock(self, trace):
        placed = arrivals(Replay(trace(QUANTISED), spread=True))
        assert len(set(placed)) == 200
        assert placed == sorted(placed)
        assert measure(Replay(trace(QUANTISED), spread=True).requests(0)).arrivals.variation < 1.3

    def test_requests_keep_their_order_and_bin(self, trace):
        requests = list(Replay(trace(QUANTISED), spread=True).requests(0))
        assert [request.prompt for request in requests] == list(range(1, 201))
        first_of_bins = [request.arrival for request in requests[::10]]
        assert all(0 < later - earlier < 6 for earlier, later in pairwise(first_of_bins))

    def test_another_seed_places_them_elsewhere(self, trace):
        replay = Replay(trace(QUANTISED), spread=True)
        assert arrivals(replay, 1) == arrivals(replay, 1) != arrivals(replay, 2)

    def test_requests_alone_stay_where_they_are(self, trace):
        assert arrivals(Replay(trace(FOUR), spread=True)) == [0, 1, 3, 7]

    def test_turns_stay_with_their_session(self, trace):
        path = trace("arrival,prompt,output,session,delay\n0,1,1,a,\n0,2,1,a,2\n0,3,1,b,\n3,1,1,c,\n")
        first, second, lone, _ = arrivals(Replay(path, spread=True))
        assert first == second < lone < 3

    def test_the_ledger_tells_of_the_ties(self, trace):
        ledger = Ledger()
        list(Replay(trace(QUANTISED), spread=True).requests(0, ledger))
        assert ledger.ties == 180


def test_duplicates_are_counted_and_kept(trace):
    ledger = Ledger()
    assert len(list(Replay(trace(HEADER + "0,1,1\n0,2,1\n0,1,1\n1,1,1\n")).requests(0, ledger))) == 4
    assert (ledger.ties, ledger.duplicates) == (2, 1)


def test_what_a_trace_does_not_say_of_limits_is_assumed(trace):
    path = trace("arrival,prompt,output,max_tokens,ignore_eos\n0,9,5,,\n1,9,5,7,true\n2,9,50,,0\n")
    said = [(each.max_tokens, each.ignore_eos) for each in Replay(path).requests(0)]
    assumed = [(each.max_tokens, each.ignore_eos) for each in
               Replay(path, max_completion_tokens=20, ignore_eos=True).requests(0)]
    assert said == [(None, False), (7, True), (None, False)]
    assert assumed == [(20, True), (7, True), (50, False)]


def test_ignore_eos_is_true_or_false(trace):
    with pytest.raises(DataError, match="ignore_eos is 'perhaps'; expected true or false"):
        [*Replay(trace("arrival,prompt,output,ignore_eos\n0,9,5,perhaps\n")).requests(0)]


class TestConfiguration:
    def test_a_replay_can_be_written_and_read_again(self):
        table = {"path": "trace.csv", "format": "azure", "limit": 5, "rate": 2.5, "start": "1 s", "end": "90 s",
                 "spread": True, "max_tokens": 4096, "overlong": "clip", "chunk_tokens": 16, "sort": True}
        replay = structure(Replay, table)
        assert (replay.start, replay.end) == (1.0, 90.0)
        assert structure(Replay, plain(replay)) == replay

    @pytest.mark.parametrize(("table", "message"), [
        ({}, "path: is missing"),
        ({"path": "a", "lmit": 3}, "lmit: unknown key; did you mean 'limit'"),
        ({"path": "a", "limit": 0}, "'limit' must be > 0: 0"),
        ({"path": "a", "limit": 2.5}, "limit: expected a whole number, not 2.5"),
        ({"path": "a", "rate": 2.0, "time_scale": 2.0}, "give rate or time_scale, not both"),
        ({"path": "a", "start": "9 s", "end": "5 s"}, r"end \(5 s\) must be after start \(9 s\)"),
        ({"path": "a", "start": "soon"}, "'soon' is not a quantity"),
        ({"path": "a", "overlong": "cut"}, "'overlong' must be in"),
        ({"path": "a", "time_scale": float("inf")}, "time_scale: expected a number that is finite"),
    ])
    def test_a_faulty_replay_is_an_error_by_key(self, table, message):
        with pytest.raises(ConfigError, match=message):
            structure(Replay, table)

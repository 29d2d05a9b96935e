"""Made-up requests: what a scenario may ask for, and what it gets."""

from itertools import islice, pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ksim.foundation.config import plain, structure
from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.foundation.rng import stream
from ksim.workload.arrivals import Arrivals
from ksim.workload.distributions import (
    Exponential,
    Fixed,
    FromTable,
    FromTrace,
    LengthTable,
    LogNormal,
    Uniform,
    seconds,
    tokens,
)
from ksim.workload.statistics import measure
from ksim.workload.synthetic import Prefixes, Sessions, Synthetic
from tests.properties import examples

BURST = Arrivals("burst")
TABLE = 'source = "me"\nlicence = "CC0"\nrequests = 2\nrate = 1.0\nburstiness = 1.0\nprobabilities = [0, 1]\n'


def draws(lengths, count=20_000):
    return list(islice(tokens(lengths, stream(0, "test"), "prompt"), count))


class TestArrivals:
    def times(self, count=20_000, **arrivals):
        return list(Arrivals(**arrivals).times(stream(0, "test"), count))

    @pytest.mark.parametrize("arrivals", [
        {"process": "poisson", "rate": 4}, {"process": "gamma", "rate": 4, "burstiness": 0.5},
        {"process": "constant", "rate": 4}])
    def test_arrivals_have_their_mean_rate(self, arrivals):
        times = self.times(**arrivals)
        assert times[0] == 0 and len(times) == 20_000
        assert (len(times) - 1) / times[-1] == pytest.approx(4, rel=0.03)

    @pytest.mark.parametrize("burstiness", [0.25, 1, 4])
    def test_gaps_vary_as_the_burstiness_says(self, burstiness):
        times = self.times(process="gamma", rate=4, burstiness=burstiness)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        mean = fmean(gaps)
        assert fmean((gap - mean)**2 for gap in gaps) / mean**2 == pytest.approx(1 / burstiness, rel=0.1)

    def test_gamma_of_burstiness_one_is_poisson(self):
        assert self.times(process="gamma", rate=4, burstiness=1) == self.times(process="poisson", rate=4)

    def test_constant_is_constant(self):
        assert self.times(4, process="constant", rate=2) == [0, 0.5, 1, 1.5]

    def test_burst_comes_at_once(self):
        assert self.times(3, process="burst") == [0, 0, 0]

    def test_exact_ends_where_the_rate_wants_it(self):
        assert self.times(101, process="gamma", rate=4, burstiness=0.2, exact=True)[-1] == pytest.approx(25)
        assert self.times(1, process="poisson", rate=4, exact=True) == [0]

    @pytest.mark.parametrize(("table", "message"), [
        ({}, "process 'poisson' takes a rate"),
        ({"process": "burst", "rate": 3}, "process 'burst' takes no rate"),
        ({"process": "gamma", "rate": 3}, "process 'gamma' takes a burstiness"),
        ({"rate": 3, "burstiness": 2}, "process 'poisson' takes no burstiness"),
        ({"process": "bursts", "rate": 3}, "'process' must be in"),
        ({"rate": 0}, "'rate' must be > 0"),
    ])
    def test_faulty_arrivals_are_an_error_by_key(self, table, message):
        with pytest.raises(ConfigError, match=message):
            structure(Arrivals, table)


class TestLengths:
    @pytest.mark.parametrize(("lengths", "mean"), [
        (Fixed(512), 512), (Uniform(100, 300), 200), (Exponential(200), 200), (LogNormal(sigma=0.5, mean=200), 200),
        (LogNormal(sigma=0.0, median=50), 50)])
    def test_draws_have_the_mean_of_their_distribution(self, lengths, mean):
        assert fmean(draws(lengths)) == pytest.approx(mean, rel=0.02)

    def test_draws_of_a_lognormal_have_its_median(self):
        assert sorted(draws(LogNormal(sigma=1.5, median=300)))[10_000] == pytest.approx(300, rel=0.05)

    def test_never_less_than_one_token(self):
        assert min(draws(Uniform(0, 3))) == 1

    def test_uniform_reaches_its_ends(self):
        assert set(draws(Uniform(5, 8))) == {5, 6, 7, 8}

    def test_seconds_are_not_rounded(self):
        assert next(seconds(Fixed("250 ms"), stream(0, "test"))) == 0.25

    def test_table_stays_inside_its_quantiles(self):
        table = LengthTable.named("azure-conv-2023")
        lengths = draws(FromTable("azure-conv-2023"))
        assert min(lengths) >= table.prompt[0] and max(lengths) <= table.prompt[-1]
        assert sorted(lengths)[10_000] == pytest.approx(table.prompt[table.probabilities.index(0.5)], rel=0.02)

    def test_a_table_of_lengths_may_be_a_file(self, tmp_path):
        (tmp_path / "mine.toml").write_text(TABLE + "prompt = [10, 20]\noutput = [1, 2]\n")
        assert set(draws(FromTable(str(tmp_path / "mine.toml")), 500)) == set(range(10, 21))

    def test_an_unknown_table_of_lengths_is_an_error(self):
        with pytest.raises(UnknownName, match="no length named 'azure-conv'; did you mean 'azure-conv-2023'"):
            draws(FromTable("azure-conv"))

    def test_a_table_of_lengths_that_falls_is_an_error(self, tmp_path):
        (tmp_path / "mine.toml").write_text(TABLE + "prompt = [20, 10]\noutput = [1, 2]\n")
        with pytest.raises(ConfigError, match="prompt must be in rising order, one per probability"):
            draws(FromTable(str(tmp_path / "mine.toml")))

    def test_trace_keeps_prompt_and_output_together_over_and_over(self, trace):
        lengths = FromTrace(trace("arrival,prompt,output\n0,10,1\n1,20,2\n2,30,3\n"))
        requests = Synthetic(Arrivals(rate=9), prompt=lengths, output=lengths, count=5).requests(0)
        assert [(request.prompt, request.output) for request in requests] == [
            (10, 1), (20, 2), (30, 3), (10, 1), (20, 2)]

    def test_lengths_of_a_trace_without_requests_are_an_error(self, trace):
        with pytest.raises(DataError, match="has no request with tokens"):
            draws(FromTrace(trace("arrival,prompt,output\n0,10,0\n"), empty="skip"))

    def test_trace_with_columns_of_its_own(self, trace):
        lengths = FromTrace(trace("in,out\n10,1\n20,2\n"), columns={"prompt": "in", "output": "out"})
        assert list(draws(lengths))[:3] == [10, 20, 10]


class TestPrefixes:
    def test_groups_share_their_chunks_and_nothing_else(self):
        requests = list(Synthetic(BURST, Fixed(40), Fixed(5), prefixes=Prefixes(groups=3, tokens=70)).requests(0))
        assert {request.prompt for request in requests} == {110}
        assert {len(request.chunks) for request in requests} == {4}
        assert len({request.chunks for request in requests}) == 3
        assert len({request.chunks[0] for request in requests}) == 3

    def test_requests_without_anything_to_share_name_no_chunks(self):
        assert {request.chunks for request in Synthetic(BURST, Fixed(40), Fixed(5)).requests(0)} == {()}

    def test_hit_share_is_that_of_the_prefix(self):
        requests = Synthetic(BURST, Fixed(64), Fixed(5), count=1000, prefixes=Prefixes(1, 64)).requests(0)
        assert measure(requests).hit_share == pytest.approx(0.5, abs=1e-3)


class TestSessions:
    TALK = Synthetic(Arrivals(rate=1), Uniform(20, 60), Uniform(5, 30), count=60,
                     sessions=Sessions(turns=Fixed(4), think=Exponential(3)))

    def turns(self, talk=TALK):
        sessions = {}
        for request in talk.requests(0):
            sessions.setdefault(request.session, []).append(request)
        return list(sessions.values())

    def test_each_session_has_its_turns(self):
        assert [len(turns) for turns in self.turns()] == [4] * 15

    def test_a_prompt_holds_all_earlier_turns_of_its_session(self):
        for turns in self.turns():
            for earlier, later in pairwise(turns):
                assert later.prompt >= earlier.prompt + earlier.output + 20
                assert later.chunks[:len(earlier.chunks)] == earlier.chunks

    def test_names_cover_prompt_and_output_in_full_chunks(self):
        for turns in self.turns():
            assert all(len(turn.chunks) == (turn.prompt + turn.output) // 16 for turn in turns)

    def test_no_chunk_is_in_two_sessions(self):
        names = [{name for turn in turns for name in turn.chunks} for turns in self.turns()]
        assert len(set().union(*names)) == sum(map(len, names))

    def test_turns_arrive_together_and_wait_for_each_other(self):
        for turns in self.turns():
            assert len({turn.arrival for turn in turns}) == 1
            assert turns[0].delay == 0 and all(turn.delay > 0 for turn in turns[1:])

    def test_the_last_session_may_be_cut_by_the_count(self):
        talk = Synthetic(BURST, Fixed(9), Fixed(9), count=6, sessions=Sessions(turns=Fixed(4)))
        assert [len(turns) for turns in self.turns(talk)] == [4, 2]

    def test_exact_arrivals_of_sessions_are_an_error(self):
        with pytest.raises(ValueError, match="cannot be exact with sessions"):
            Synthetic(Arrivals(rate=1, exact=True), Fixed(9), Fixed(9), sessions=Sessions(Fixed(2)))


def test_requests_may_ignore_stop_tokens():
    load = Synthetic(BURST, Fixed(100), Fixed(50), count=2, ignore_eos=True)
    assert [request.ignore_eos for request in load.requests(0)] == [True, True]


def test_max_tokens_ends_a_session_and_cuts_a_first_prompt():
    talk = Synthetic(BURST, Fixed(100), Fixed(50), count=9, max_tokens=400, sessions=Sessions(turns=Fixed(9)))
    assert [request.prompt for request in talk.requests(0)] == [100, 250] * 4 + [100]
    alone = Synthetic(BURST, Fixed(100), Fixed(50), count=1, max_tokens=120, prefixes=Prefixes(1, 160))
    (request,) = alone.requests(0)
    assert (request.prompt, request.output, len(request.chunks)) == (70, 50, 4)


def test_priorities_are_equally_likely():
    requests = list(Synthetic(BURST, Fixed(9), Fixed(9), count=6000, priorities=(0, 0, 5)).requests(0))
    assert sum(request.priority == 5 for request in requests) == pytest.approx(2000, rel=0.1)


FORMULAS = some.sampled_from([Fixed(20), Uniform(1, 50), Exponential(30), LogNormal(sigma=1.0, mean=40),
                              FromTable("azure-code-2023")])
ARRIVALS = some.sampled_from([Arrivals(rate=3), Arrivals("gamma", 2, 0.1), Arrivals("constant", 5), BURST])


@examples(40)
@given(arrivals=ARRIVALS, prompt=FORMULAS, output=FORMULAS, count=some.integers(1, 60), seed=some.integers(0, 9),
       prefixes=some.none() | some.just(Prefixes(2, 40)), sessions=some.none() | some.just(Sessions(Uniform(1, 5))),
       max_tokens=some.none() | some.integers(2, 500))
def test_requests_obey_their_limits_and_repeat(*, arrivals, prompt, output, count, seed, prefixes, sessions,
                                               max_tokens):
    synthetic = Synthetic(arrivals, prompt, output, count, prefixes, sessions, max_tokens=max_tokens)
    requests = list(synthetic.requests(seed))
    assert requests == list(synthetic.requests(seed)), "the same seed gives the same requests"
    assert [request.id for request in requests] == list(range(count))
    assert requests[0].arrival == 0
    assert all(earlier.arrival <= later.arrival for earlier, later in pairwise(requests))
    assert all(request.prompt + request.output <= (max_tokens or 10**9) for request in requests)
    assert all(len(request.chunks) * 16 <= request.prompt + request.output for request in requests)
    assert structure(Synthetic, plain(synthetic)) == synthetic


def test_a_longer_run_begins_like_a_shorter_one():
    short = Synthetic(Arrivals(rate=3), Uniform(1, 50), LogNormal(sigma=1.0, mean=40), count=50)
    long = Synthetic(Arrivals(rate=3), Uniform(1, 50), LogNormal(sigma=1.0, mean=40), count=9000)
    assert list(islice(long.requests(7), 50)) == list(short.requests(7))


def test_changing_the_outputs_leaves_arrivals_and_prompts():
    fixed, uniform = (Synthetic(Arrivals(rate=3), Uniform(1, 50), output).requests(0)
                      for output in (Fixed(3), Uniform(1, 9)))
    assert [(r.arrival, r.prompt) for r in fixed] == [(r.arrival, r.prompt) for r in uniform]

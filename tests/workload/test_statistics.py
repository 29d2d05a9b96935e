"""The statistics of small traces that can be counted by hand."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ksim.flow.request import Request
from ksim.workload.statistics import PROBABILITIES, Occurrences, measure


def requests(*arrivals):
    return [Request(number, arrival, 100 * (number + 1), 10) for number, arrival in enumerate(arrivals)]


def test_statistics_of_arrivals():
    arrivals = measure(requests(0, 0, 0.5, 1.5, 14)).arrivals
    assert (arrivals.arrivals, arrivals.duration, arrivals.rate) == (5, 14, 4 / 14)
    assert (arrivals.ties, arrivals.longest_gap) == (1, 12.5)
    assert (arrivals.peak_1s, arrivals.peak_10s) == (3, 0.4)
    gaps = [0, 0.5, 1, 12.5]
    assert arrivals.variation == pytest.approx(np.std(gaps) / np.mean(gaps))
    assert arrivals.burstiness == pytest.approx(arrivals.variation**-2)


def test_statistics_of_lengths():
    statistics = measure(requests(0, 1, 2))
    assert statistics.prompt.row() == {
        "mean": 200, "min": 100, "p1": 102, "p50": 200, "p90": 280, "p95": 290, "p99": 298, "max": 300}
    assert (statistics.total.total, statistics.requests) == (630, 3)


def test_one_request_has_no_rate():
    statistics = measure(requests(0))
    assert isnan(statistics.arrivals.rate) and isnan(statistics.arrivals.variation)


def test_measuring_no_request_is_an_error():
    with pytest.raises(ValueError, match="no request to measure"):
        measure([])


def test_the_timeline_has_bins_of_whole_seconds():
    starts, rates = measure(requests(0, 0.5, 3, 9.5)).arrivals.timeline(bins=5)
    assert starts.tolist() == [0, 2, 4, 6, 8]
    assert rates.tolist() == [1, 0.5, 0, 0, 0.5]


class TestSharing:
    def share(self, *prompts, output=1):
        return measure(Request(number, 0, prompt, output, chunks, chunk_tokens=10)
                       for number, (prompt, chunks) in enumerate(prompts))

    def test_only_chunks_in_a_known_prefix_are_hits(self):
        statistics = self.share((30, "abc"), (30, "abd"), (30, "xbc"), (20, "ab"))
        assert (statistics.sharing.chunks, statistics.sharing.hit_chunks) == (11, 4)
        assert (statistics.sharing.requests_with_hit, statistics.sharing.requests_all_hit) == (2, 1)
        assert statistics.hit_share == 40 / 110

    def test_a_partial_chunk_counts_its_tokens(self):
        assert self.share((25, "abc"), (25, "abc")).sharing.hit_tokens == 25

    def test_chunks_of_an_output_are_hits_of_the_next_turn(self):
        statistics = measure([Request(0, 0, 10, 10, "ab", 10, session="s"),
                              Request(1, 0, 30, 10, "abcd", 10, session="s")])
        assert (statistics.sharing.hit_tokens, statistics.sharing.chunks) == (20, 4)

    def test_chunks_of_another_size_are_no_hits(self):
        statistics = measure([Request(0, 0, 10, 1, "a", 10), Request(1, 0, 20, 1, "a", 20)])
        assert statistics.sharing.hit_chunks == 0


def test_statistics_of_sessions():
    turns = [Request(0, 0, 5, 1, session="a"), Request(1, 0, 9, 1, session="a", delay=2), Request(2, 4, 5, 1),
             Request(3, 4, 5, 1, session="b")]
    statistics = measure(turns)
    assert (statistics.turns.count, statistics.turns.mean) == (2, 1.5)
    assert (statistics.arrivals.arrivals, statistics.arrivals.ties) == (3, 1)


def test_the_table_has_plain_numbers_and_no_empty_groups():
    table = measure(requests(0, 1)).table()
    assert list(table) == ["arrivals", "prompt", "output", "total", "ledger"]
    assert table["arrivals"]["rate"] == 1
    assert all(isinstance(value, int | float) for group in table.values() for value in group.values())


@given(some.lists(some.integers(0, 50), min_size=1))
def test_quantiles_are_those_of_numpy(values):
    tally = Occurrences()
    for value in values:
        tally.add(value)
    summary = tally.summary()
    assert (summary.count, summary.total) == (len(values), sum(values))
    assert summary.quantiles == pytest.approx(np.quantile(values, PROBABILITIES).tolist())

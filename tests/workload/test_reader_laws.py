"""What holds for every trace reader, from the moment its file exists."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ksim.foundation.catalog import names
from ksim.workload.ledger import Ledger
from ksim.workload.reading import FOLDER, read, reader, recognise
from ksim.workload.replay import Replay

FORMATS = names(FOLDER)


@pytest.mark.parametrize("name", FORMATS)
class TestEveryReader:
    def test_its_example_is_its_own(self, trace, name):
        assert recognise(trace(reader(name).example)) == name

    def test_arrivals_ordered_from_zero_and_lengths_positive(self, trace, name):
        rows = list(read(trace(reader(name).example)))
        assert len(rows) > 1 and rows[0].arrival == 0
        assert all(earlier.arrival <= later.arrival for earlier, later in pairwise(rows))
        assert all(row.prompt > 0 and row.output > 0 for row in rows)

    def test_reading_twice_gives_the_same(self, trace, name):
        replay = Replay(trace(reader(name).example))
        assert list(replay.requests(0)) == list(replay.requests(0))

    def test_a_cut_file_is_an_error_or_shorter_but_never_crashes(self, trace, name):
        whole = reader(name).example
        for end in range(1, len(whole)):
            try:
                list(Replay(trace(whole[:end]), format=name).requests(0))
            except Exception as error:
                assert type(error).__name__ == "DataError", f"{whole[:end]!r} gave {error!r}"


#: Failed requests have no output; only they may be without a prompt.
ROWS = some.lists(some.tuples(some.integers(0, 30), some.integers(0, 9), some.integers(0, 9)).filter(
    lambda row: row[1] or not row[2]), min_size=1, max_size=40)


@settings(deadline=None)
@given(rows=ROWS, sort=some.booleans(), limit=some.none() | some.integers(1, 9), start=some.integers(0, 9))
def test_every_row_is_accounted_for(tmp_path_factory, rows, sort, limit, start):
    path = tmp_path_factory.mktemp("law") / "trace.csv"
    path.write_text("arrival,prompt,output\n0,9,3\n" + "".join(f"{t},{p},{o}\n" for t, p, o in rows) + "40,9,3\n")
    ledger = Ledger()
    requests = list(Replay(path, sort=sort, limit=limit, start=start, max_prompt=9, max_tokens=12).requests(0, ledger))
    assert [request.id for request in requests] == list(range(len(requests)))
    assert requests[0].arrival == 0
    assert all(earlier.arrival <= later.arrival for earlier, later in pairwise(requests))
    assert ledger.requests == len(requests)
    assert ledger.rows == len(requests) + ledger.zero_outputs + ledger.outside_window + ledger.overlong
    assert limit or ledger.rows == len(rows) + 2


def test_memory_does_not_grow_with_the_trace(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("arrival,prompt,output\n" + "".join(f"{row / 8},1000,{row % 300 + 1}\n" for row in range(50_000)))
    tracemalloc.start()
    count = sum(1 for _ in Replay(path, rate=3).requests(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 50_000
    assert peak < 1_000_000, "50,000 rows held would take ten times as much"

"""What `python -m benchmarks planning` makes of its questions, which processes answer."""

import pickle

from benchmarks.planning import Answered, Tried, findings_of


def tried(rank, gpus=1.0, stands=True, error=0.1):
    return Tried(rank, stands, (gpus,), gpus, (("ttft", error), ("tpot", -error / 2)))


def test_the_winner_is_the_cheapest_that_stands_and_errors_are_medians():
    one = Answered("a", 200, 1.5, (tried(1, 4.0), tried(2, 2.0), tried(3, 1.0, stands=False, error=0.3)), 0.02)
    other = Answered("b", 100, 0.5, (tried(7, 1.0), tried(1, 2.0)))
    assert (one.winner, one.dearer, other.winner, other.dearer) == (2, 0.0, 7, 1.0)
    found = findings_of([one, other])
    assert [row[4] for row in found.sheets[0].rows] == ["2", "7"]
    assert found.sheets[0].rows[0][5:] == ["10 %", "5 %", "2 %"] and found.sheets[0].rows[1][7] == "-"


def test_answers_come_from_processes():
    answer = Answered("a", 200, 1.5, (tried(1),))
    assert pickle.loads(pickle.dumps(answer)) == answer

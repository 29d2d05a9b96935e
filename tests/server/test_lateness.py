"""How late tokens leave, and what is said of it."""

from ksim.server.live import Lateness


def test_a_server_that_cannot_keep_up_says_so_once_in_a_while(caplog):
    lateness = Lateness()
    for step in range(100):
        lateness.note(0.02, 10, 0.1 * step)
    assert (lateness.tokens, lateness.late) == (1000, 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "ksim: cannot keep up: 60 of 60 tokens left more than 5 ms after their simulated times, up to 20 ms; latencies"
        " that clients measure are too long"]
    for step in range(100):
        lateness.note(0.03, 10, 10.0 + 0.1 * step)
    assert len(caplog.records) == 2


def test_a_few_late_tokens_are_counted_and_not_worth_a_word(caplog):
    lateness = Lateness()
    for step in range(1000):
        lateness.note(0.006 if step % 200 == 0 else 0.001, 10, 0.001 * step)
    assert lateness.late == 50 and not caplog.records


def test_the_worst_case_is_remembered_for_a_while():
    lateness = Lateness()
    lateness.note(0.02, 1, 1.0)
    lateness.note(0.001, 1, 12.0)
    assert lateness.recent(19.0) == 0.02
    assert lateness.recent(20.0) == 0.001
    assert lateness.recent(50.0) == 0.0


def test_of_tokens_that_leave_one_after_the_other_only_the_later_ones_are_late():
    lateness = Lateness()
    lateness.note(0.010, 100, 1.0, first=0.0)
    assert lateness.late == 50
    lateness.note(0.010, 100, 1.1, first=0.006)
    assert lateness.late == 150
    lateness.note(0.004, 100, 1.2, first=0.001)
    assert lateness.late == 150

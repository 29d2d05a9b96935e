"""How the benchmarks judge figures of one machine on another."""

import pytest

from benchmarks.findings import Goal
from benchmarks.yardstick import STANDARD, microseconds, scaled


@pytest.mark.parametrize(("goal", "found", "yardstick", "judged"), [
    (Goal("run", 1.0, "CPU s"), 1.5, 2 * STANDARD, ("<= 1 CPU s", "1.5", "0.84", "0.75", "scaled only")),
    (Goal("run", 1.0, "CPU s"), 0.9, STANDARD / 2, ("<= 1 CPU s", "0.9", "0.21", "1.8", "here only")),
    (Goal("rate", 2000, "/s", least=True), 1500.0, 2 * STANDARD, (">= 2000 /s", "1500", "0.84", "3000", "scaled only")),
    (Goal("ratio", 1.5, "times", timed=False), 1.4, 2 * STANDARD, ("<= 1.5 times", "1.4", "", "1.4", "yes")),
])
def test_goals_are_judged_here_and_where_peers_were_measured(goal, found, yardstick, judged):
    assert goal.judged(found, yardstick) == (goal.what, *judged)


def test_what_takes_as_long_as_events_takes_as_long_everywhere():
    assert scaled(70 * STANDARD, 7 * STANDARD) == pytest.approx(10 * STANDARD)


def test_the_yardstick_measures():
    assert microseconds(1000) > 0

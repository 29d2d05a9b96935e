"""How the benchmarks judge figures of one machine on another, and count the code that runs."""

import runpy

import pytest

import ksim
from benchmarks import layers, walks
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


def test_event_loops_take_as_long_in_every_comparison():
    assert scaled(70 * STANDARD, 7 * STANDARD) == pytest.approx(10 * STANDARD)


def test_the_yardstick_measures():
    assert microseconds(1000) > 0


def test_a_walk_counts_each_function_once_and_comprehensions_with_theirs(tmp_path, monkeypatch):
    (tmp_path / "inner.py").write_text("def double(x):\n    return 2 * x\n\n\ndef unused():\n    pass\n")
    (tmp_path / "outer.py").write_text("def total(double):\n    def two():\n        return double(1) + double(2)\n\n"
                                       "    return two() + sum([double(x) for x in range(3)]) + (lambda: 1)()\n")
    monkeypatch.setattr(walks, "ROOT", tmp_path)
    double, total = (runpy.run_path(str(tmp_path / f"{file}.py"))[name]
                     for file, name in (("inner", "double"), ("outer", "total")))
    assert walks.Walk.of(lambda number: total(double)).files == {"inner.py": 1, "outer.py": 2}


def test_no_walk_passes_more_files_than_it_should():
    counts, *lists = walks.findings(listed=True).sheets
    assert [row[0] for row in counts.rows] == [*walks.AIMS]
    assert [int(row[1]) for row in counts.rows] == [len(sheet.rows) for sheet in lists]
    assert all(int(functions) >= int(files) > 0 for _, files, _, functions in counts.rows)
    assert not [row for row in counts.rows if int(row[1]) > int(row[2])]


def test_the_picture_of_the_layers_shows_what_packages_may_import():
    assert layers.PICTURE.read_text(encoding="utf-8") == layers.picture(ksim.LAYERS), "make pages"

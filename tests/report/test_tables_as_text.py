"""Aligned tables."""

from ksim.report.tables import aligned


def test_texts_stand_left_and_numbers_right():
    assert aligned(["name", ">us"], [("a", "10.5"), ("longer", "2")]).splitlines() == [
        "name      us",
        "────────────",
        "a       10.5",
        "longer     2",
    ]


def test_totals_come_after_a_gap():
    assert aligned(["name", ">us"], [("a", "1")], ["total", "1"]).splitlines()[-2:] == ["", "total   1"]


def test_nothing_is_taken_for_markup_or_cut():
    cell = "[bold]" + "x" * 300
    assert cell in aligned(["name"], [(cell,)])

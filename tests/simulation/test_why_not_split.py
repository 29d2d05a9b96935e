"""docs/evidence/why_not_split.md says what its scenarios give."""

from benchmarks.why_not_split import PAGE, RATES, played, row, why


def test_the_page_has_the_numbers_of_its_scenarios_and_what_diff_says_of_them():
    page, (first, *_) = PAGE.read_text(encoding="utf-8"), RATES
    results = {side: played(side, first) for side in ("TP4", "2P2D")}
    for side, result in results.items():
        assert row(side, first, result.summary) in page, "python -m benchmarks.why_not_split --write"
    for line in why(results["TP4"], results["2P2D"]):
        assert line in page, "python -m benchmarks.why_not_split --write"

"""How numbers are written."""

import pytest

from ksim.report.wording import measure


@pytest.mark.parametrize("value, unit, text", [
    (0.0928, "J", "92.8 mJ"), (1.7, "J", "1.70 J"), (7.28e12, "FLOP", "7.28 TFLOP"), (2.5e-6, "s", "2.50 us"),
    (0, "s", "0 s"), (1e3, "B", "1.00 kB"), (2e-9, "s", "0.0020 us")])
def test_a_measure_has_the_prefix_that_it_reads_best_with(value, unit, text):
    assert measure(value, unit) == text

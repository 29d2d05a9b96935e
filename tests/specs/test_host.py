"""What the CPU adds to a step."""

import pytest

from ksim.specs.host import Host


def test_seconds_around_a_step():
    host = Host("test", schedule="100 us", schedule_sequence="1 us", launch="50 us", output="80 us",
                output_sequence="2 us", source="a test")
    assert host.before(sequences=10) == pytest.approx(160e-6)
    assert host.after(samples=10) == pytest.approx(100e-6)

"""What real autoscalers decided on fixed series of metrics, ours decide too.

The recorded cases are kept in tests/golden/autoscalers, packed.  Those that lie beside the repository are tried where
they are there, and forecasts by ARIMA and Prophet where their libraries are.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from ksim.validation import autoscalers
from ksim.validation.schedules import ScheduleReport

OWN = Path(__file__).parents[1] / "golden" / "autoscalers"
ALL = Path(__file__).parents[3] / "shared" / "data" / "autoscaler_golden"
FITTED = ("arima", "prophet")
HAS_LIBRARIES = all(find_spec(name) is not None for name in ("pmdarima", "prophet"))


def wrong(reports: list[ScheduleReport]) -> list[str]:
    """The cases that are not exact, but for those whose library is not there."""
    return [report.case for report in reports if not report.exact
            and (HAS_LIBRARIES or not any(name in report.case for name in FITTED))]


@pytest.mark.parametrize(("name", "count"), [("hpa_series", 41), ("hpa_tables", 131), ("keda", 26), ("lifecycle", 13),
                                             ("planner", 69), ("planner_09", 16), ("wva", 30)])
def test_recorded_decisions_come_out_exactly(name, count):
    if name == "planner_09":
        pytest.importorskip("scipy", reason="profiles are interpolated by scipy")
    reports = autoscalers.validate(OWN / f"{name}.json.gz")
    assert len(reports) == count and wrong(reports) == []


@pytest.mark.skipif(not HAS_LIBRARIES, reason="needs pmdarima and Prophet: pip install 'ksim-llm[forecast]'")
@pytest.mark.parametrize("name", ["slow_arima_noisy", "slow_prophet_burst", "old_arima_ramp"])
def test_forecasts_of_libraries_come_within_a_hundredth(name):
    assert autoscalers.validate(OWN, name)[0].difference is None


@pytest.mark.explore  # the same cases as above, as they are delivered
@pytest.mark.skipif(not ALL.is_dir(), reason=f"the recorded decisions are not at {ALL}")
def test_all_recorded_decisions_come_out_exactly():
    assert wrong(autoscalers.validate(ALL)) == []

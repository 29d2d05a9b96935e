"""What real autoscalers decided on fixed series of metrics, ours decide too.

The recorded cases are kept in tests/golden/autoscalers, packed.  Those whose forecasts need a library (ARIMA, Prophet)
take half a minute, and are tried by `make explore` where the libraries are there; so are the cases as they are
delivered, which lie beside the repository.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from ksim.validation import autoscalers, cases

OWN = Path(__file__).parents[1] / "golden" / "autoscalers"
ALL = Path(__file__).parents[3] / "shared" / "data" / "autoscaler_golden"
COUNTS = {"hpa_series": 41, "hpa_tables": 131, "keda": 26, "lifecycle": 13, "planner": 69, "planner_09": 16, "wva": 30}
HAS_LIBRARIES = all(find_spec(name) is not None for name in ("pmdarima", "prophet"))
needs_libraries = pytest.mark.skipif(not HAS_LIBRARIES, reason="needs pmdarima and Prophet: the extra `forecast`")


@pytest.fixture
def split(tmp_path):
    """Write those cases of a file whose forecasts need a library, or the others; returns the file, and how many."""

    def write(name, fitted):
        table = cases.load_json(OWN / f"{name}.json.gz")
        chosen = [case for case in table["cases"]
                  if (case.get("config", {}).get("load_predictor") in ("arima", "prophet")) == fitted]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**table, "cases": chosen}))
        return path, len(chosen)

    return write


def wrong(path):
    return [report.case for report in autoscalers.validate(path) if not report.exact]


@pytest.mark.parametrize("name", COUNTS)
def test_recorded_decisions_come_out_exactly(split, name):
    if name == "planner_09":
        pytest.importorskip("scipy", reason="profiles are interpolated by scipy")
    path, count = split(name, fitted=False)
    assert count == COUNTS[name] - {"planner": 6, "planner_09": 3}.get(name, 0)
    assert wrong(path) == []


@needs_libraries
@pytest.mark.explore
@pytest.mark.parametrize("name", ["planner", "planner_09"])
def test_decisions_by_arima_and_prophet_come_within_a_hundredth(split, name):
    assert wrong(split(name, fitted=True)[0]) == []


@needs_libraries
@pytest.mark.explore
@pytest.mark.skipif(not ALL.is_dir(), reason=f"the recorded decisions are not at {ALL}")
def test_all_recorded_decisions_come_out_exactly():
    assert wrong(ALL) == []

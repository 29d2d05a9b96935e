"""The phases of a run's requests, and the check that they add up."""

import numpy as np
import pytest

from ksim.results import attribution
from ksim.views.result import Result


def parts(result: Result) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The columns up to the first token, and after it."""
    table = {name: result.attribution[name].to_numpy() for name in result.attribution.column_names}
    first, after = ({name.removeprefix(f"{part}."): column for name, column in table.items()
                     if name.startswith(f"{part}.")} for part in (attribution.TO_FIRST, attribution.AFTER))
    return first, after


def total(columns: dict[str, np.ndarray], prefix: str = "") -> np.ndarray:
    return sum(column for name, column in columns.items() if name.startswith(prefix))


def assert_a_partition(result: Result) -> None:
    requests, (first, after) = result.history.requests, parts(result)
    done = requests.completed
    assert result.attribution["id"].to_pylist() == [r.id for r, d in zip(requests.requests, done, strict=True) if d]
    assert total(first) == pytest.approx(requests.ttft[done], rel=0, abs=1e-9)
    assert total(after) == pytest.approx((requests.last_token - requests.first_token)[done], rel=0, abs=1e-9)
    assert total(first) + total(after) == pytest.approx(requests.e2e[done], rel=0, abs=1e-9)
    for columns in (first, after):
        assert all((column >= -1e-9).all() for column in columns.values())
    assert first["queue"] == pytest.approx((requests.admitted - requests.received)[done], rel=0, abs=1e-9)

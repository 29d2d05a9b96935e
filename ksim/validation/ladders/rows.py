"""Measured load ladders: a table with a row for each rate, arm and run."""

import math
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from ksim.calibration.reading.frames import Frame, load
from ksim.foundation.errors import DataError

_KEY = ("ladder", "run", "arm", "stage")
#: What is compared: columns of the table, in their own units.  The first are completed work over a stage's seconds.
RATES = ("req_s", "out_tok_s", "in_tok_s", "total_tok_s")
MEASURES = (*RATES, "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p95_s", "ttft_p99_s", "e2e_mean_s", "e2e_p50_s",
            "e2e_p90_s", "e2e_p95_s", "e2e_p99_s", "tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p95_ms",
            "tpot_p99_ms", "itl_mean_ms")


@frozen
class Row:
    """A stage of a ladder, or a whole run: what was measured of the `MEASURES`, by name.

    `rate` is in requests per second, nan where the client kept a number of requests in flight, or for a whole run.
    """

    ladder: str
    run: str
    arm: str
    stage: str
    rate: float
    measured: Mapping[str, float]

    @property
    def name(self) -> tuple[str, str, str]:
        """Ladder, run and arm."""
        return self.ladder, self.run, self.arm


def read(path: Path) -> list[Row]:
    """Read the rows of the table at *path*; raises DataError for a missing column or an impossible value."""
    frame = load(path)
    if missing := [name for name in (*_KEY, "rate_target_rps") if name not in frame]:
        raise DataError(str(path), f"has no column {missing[0]!r}; a table of ladders has {', '.join(_KEY)},"
                                   f" rate_target_rps and some of {', '.join(MEASURES)}")
    columns = {name: _numbers(path, frame, name) for name in MEASURES if name in frame}
    keys = zip(*(frame.texts(name).tolist() for name in _KEY), strict=True)
    rates = frame.numbers("rate_target_rps").tolist()
    return [Row(ladder, run, arm, stage, rate, {name: values[place] for name, values in columns.items()
                                                if not math.isnan(values[place])})
            for place, ((ladder, run, arm, stage), rate) in enumerate(zip(keys, rates, strict=True))]


def _numbers(path: Path, frame: Frame, name: str) -> list[float]:
    numbers: list[float] = frame.numbers(name).tolist()
    for place, number in enumerate(numbers):
        if not math.isnan(number) and not 0 < number < math.inf:
            raise DataError(str(path), f"{frame.unit} {frame.places[place]}: column {name!r} is {number:g}; expected a"
                                       " number above 0")
    return numbers

"""KV transfers, beside measured ones."""

from math import isnan
from pathlib import Path

import pytest

from benchmarks.research.transfers import by_series, constants, fit, median_ape, read, validate
from ksim.foundation.errors import DataError
from ksim.kv.transfer.connectors.engines import Mooncake
from tests.research.transfer_rows import HEAD, row, table

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "cluster" / "transfers.csv"


def taken(size: float, start: float, share: float, line: float = 200e9) -> float:
    return start + size / (share * line)


def test_a_transfer_takes_its_start_and_then_its_bytes_over_its_share_of_the_nics(tmp_path):
    """Whatever the number of NICs and ranks: each rank has its part of the line rate."""
    start, share = Mooncake().start, Mooncake().share
    path = table(tmp_path, *(row(ranks=ranks, bytes=1e9, seconds=taken(1e9, start, share, 1e9 * line), line=line,
                                 series=f"{ranks} {line}") for ranks, line in ((1, 25), (4, 100), (8, 200), (8, 400))))
    assert [transfer.error for transfer in validate(path).transfers] == pytest.approx([0.0] * 4, abs=1e-9)


def test_constants_are_fitted_to_every_second_row_of_a_series(tmp_path):
    """Rows to which nothing is fitted have no influence; the constants of the others are found again."""
    sizes = [2e7, 1e8, 3e8, 2e9, 5e9]
    path = table(tmp_path, *(row(bytes=size, seconds=taken(size, 1e-3, 0.6) * (3 if place % 2 else 1))
                             for place, size in enumerate(sizes)))
    (series,) = by_series(read(path))
    assert fit(series) == pytest.approx((1e-3, 0.6))
    assert [transfer.fitted for transfer in validate(path).transfers] == [True, False, True, False, True]


def test_what_cannot_be_compared_is_refused_with_the_reason(tmp_path):
    refused = {"p2p_prefix_pull_cpu_to_cpu": "a whole prefill with the pull in it: no bandwidth",
               "weights": "a transfer of kind 'weights' is not modelled"}
    path = table(tmp_path, row(), *(row(kind=kind, line="") for kind in refused), row(connector="Pigeon 1.0"),
                 row(line=""), row(ranks=4, others=8))
    report = validate(path)
    assert len(report.transfers) == 1 and isnan(median_ape(report.held_back))
    for reason in (*refused.values(), "no connector stands for 'Pigeon 1.0' of 'vLLM 0.11'", "has no line rate",
                   "different numbers of ranks"):
        assert any(reason in found for found in report.refused), reason


@pytest.mark.parametrize("rows, problem", [
    ([], "has no transfer that can be compared: it has no rows"),
    ([row(line="")], "has no transfer that can be compared: the table has no line rate"),
    ([row(), row(bytes="many")], "line 3: column 'bytes' is nan; expected a number above 0"),
    ([row(seconds=0)], "line 2: column 'seconds' is 0; expected a number above 0"),
])
def test_tables_that_say_nothing_are_refused(tmp_path, rows, problem):
    with pytest.raises(DataError) as error:
        validate(table(tmp_path, *rows))
    assert problem in str(error.value)


def test_a_column_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="has no column 'gpu'; a table of transfers has series, kind, engine"):
        read(table(tmp_path, row(), head=HEAD.replace("gpu", "card")))


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured transfers are not here")
def test_measured_transfers_are_predicted_and_constants_are_those_of_the_fit():
    report = validate(MEASURED)
    assert median_ape(report.held_back) <= 7 and median_ape(report.transfers) <= 7
    assert (len(report.transfers), len(report.held_back), [*report.refused.values()]) == (18, 8, [5])
    for series in by_series([found for found in read(MEASURED) if not found.refusal]):
        assert constants(series[0]) == pytest.approx(fit(series), rel=2e-3)

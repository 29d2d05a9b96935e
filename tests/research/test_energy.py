"""Energy is judged by whatever there is: sustained kernels, serving runs, public tables."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.research.energy import EnergyQuestion, as_table, validate
from ksim.foundation.errors import DataError, UnknownName
from tests.calibration.samples import COPY, IDLE, gemm, sweep
from tests.research.energy_tables import boards, kernels


def test_only_what_is_there_is_judged(tmp_path):
    boards(tmp_path, *(gemm(m=m, gpu=gpu) for m in range(1, 41) for gpu in ("h200_sxm", "gb200")))
    (tmp_path / "notes.csv").write_text("some,notes\n")
    verdict = validate(EnergyQuestion(tmp_path))
    assert verdict.kernels is None and verdict.runs is None and verdict.table is not None
    assert [cell.gpu for cell in verdict.table.gpus] == ["gb200", "h200"]
    assert sum(cell.rows for cell in verdict.table.cells) == verdict.table.whole.rows < 80
    few = validate(EnergyQuestion(tmp_path / "power_sample.parquet", limit=40)).table
    assert few is not None and 0 < few.whole.rows < verdict.table.whole.rows
    assert as_table(verdict).keys() == {
        "table_mape", "table_median_ape", "table_observed_mape", "table_observed_median_ape", "table_rows",
        "table_by_gpu", "table_cells"}


def test_copies_that_draw_what_the_model_says_are_predicted_exactly(tmp_path):
    kernels(tmp_path)
    table = as_table(validate(EnergyQuestion(tmp_path)))
    assert {each["family"] for each in table["kernels"]} == {"gemm", "copy"}
    cool = [each for each in table["kernels"] if each["watts"] < 700 and each["family"] == "copy"]
    assert cool and all(abs(each["power_shape_error"]) < 1e-3 and each["time_shape_error"] == 0 for each in cool)
    assert table["kernels_shape_mape"] <= table["kernels_family_mape"]


def test_unusable_measurements_of_energy_are_refused(tmp_path):
    with pytest.raises(DataError, match="has no measurements of energy; expected a table of sustained kernels"):
        validate(EnergyQuestion(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        validate(EnergyQuestion(tmp_path / "nowhere"))
    kernels(tmp_path)
    with pytest.raises(UnknownName, match="h2000"):
        validate(EnergyQuestion(tmp_path, gpu="h2000"))
    (tmp_path / "copy.parquet").write_bytes((tmp_path / "kernels_energy.parquet").read_bytes())
    with pytest.raises(DataError, match="more than one such table: copy.parquet, kernels_energy.parquet"):
        validate(EnergyQuestion(tmp_path))
    boards(tmp_path, gemm())
    with pytest.raises(DataError, match="has no row to compare with"):
        validate(EnergyQuestion(tmp_path / "power_sample.parquet"))


def test_sustained_kernels_of_one_family_are_too_few(tmp_path):
    pq.write_table(pa.Table.from_pylist(sweep(IDLE, COPY)), tmp_path / "kernels_energy.parquet")
    with pytest.raises(DataError, match="needs kernels of two families"):
        validate(EnergyQuestion(tmp_path))

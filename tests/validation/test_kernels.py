"""`ksim validate kernels`: statistics by hand, and three GPUs whose kernels are made up."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from ksim.calibration.accuracy import PredictedRows, Question, cells, coverage, families, validate
from ksim.calibration.calibrate import digest
from ksim.calibration.measurements import Measurements, Source
from ksim.cli.validate import kernels as command
from ksim.foundation.config import Choice
from ksim.foundation.errors import DataError, KsimError, UnknownName
from ksim.oracles.efficiency.profiled import save
from tests.validation.kernel_tables import rows

pytest.importorskip("scipy")
app = typer.Typer()
app.command()(command)


def judged(predicted, tags=("grid",) * 4, dtype="bf16", gpu="h200", low=0.5, high=2.0, family="rms_norm"):
    """Four rows of 10, 20, 30 and 40 us."""
    rows = Measurements(family=family, dtype=dtype, columns={"t": np.arange(1, 5), "h": np.full(4, 64)},
                        tags=np.array(tags), seconds=np.array([1e-5, 2e-5, 3e-5, 4e-5]), rows=np.arange(4),
                        source=Source("my.csv", "sweep"), gpu=gpu)
    seconds = 1e-6 * np.array(predicted, dtype=float)
    return PredictedRows(gpu, family, rows, "unseen", seconds, low * seconds, high * seconds)


def test_cells_have_statistics_computed_by_hand():
    (cell,) = cells([judged([11, 16, 30, 60])])  # +10, -20, 0 and +50 %
    assert (cell.points, cell.mape, cell.median, cell.bias) == pytest.approx((4, 20.0, 15.0, 10.0))
    assert (cell.p90, cell.p99) == pytest.approx((41.0, 49.1))  # linear between the sizes 0, 10, 20 and 50
    assert cell.coverage == 100.0
    assert cell.worst[:2] == ("t=4 h=64: 40 us, +50 %", "t=2 h=64: 20 us, -20 %")


def test_each_tag_has_its_cell():
    one, two = cells([judged([11, 22, 33, 40], tags=("a", "b", "a", "b"))])
    assert (one.tag, one.points, one.mape, two.tag, two.points, two.mape) == ("a", 2, pytest.approx(10), "b", 2,
                                                                              pytest.approx(5))


def test_coverage_counts_the_rows_that_lie_in_their_intervals():
    narrow = judged([11, 22, 30, 40], low=0.95, high=1.05)
    assert coverage([narrow]) == 50.0 and coverage([narrow, judged([10, 20, 30, 40])]) == 75.0
    silent = judged([10, 20, 30, 40], low=np.nan, high=np.nan)
    assert coverage([silent]) is None and coverage([silent, narrow]) == 50.0
    assert next(cells([silent])).coverage is None


def test_families_are_means_over_gpus_and_formats_stand_apart():
    found = families([judged([11, 22, 33, 44]), judged([13, 26, 39, 52], gpu="b200"),
                      judged([20, 40, 60, 80], dtype="fp8")])
    assert found == {"rms_norm": {"mape": pytest.approx(20), "median": pytest.approx(20), "points": 8},
                     "rms_norm/fp8": {"mape": pytest.approx(100), "median": pytest.approx(100), "points": 4}}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "gemm.parquet"
    pq.write_table(pa.Table.from_pylist(rows()), path)
    return path


def test_a_grid_of_its_own_rows_teaches_measured(table):
    verdict = validate(Question(path=table, gpu="h200", oracle=Choice("measured")))
    (cell,) = verdict.cells
    assert cell.how.startswith("from ") and cell.points < 72 and cell.mape < 10
    assert verdict.families["gemm"]["points"] == cell.points and verdict.mean == pytest.approx(cell.mape)


def test_a_profile_fitted_to_these_rows_is_not_asked_about_them(tmp_path):
    """With the digest of the file in its header, rows are held back in turn; without, they are unseen."""
    path = tmp_path / "kernels_rms_norm.csv"
    lines = [f"h200,{t},{h},{2 + t * h / 1e6}" for h in (512, 1024, 2048, 4096, 8192) for t in (1, 8, 64, 512)]
    path.write_text("gpu,t,h,latency_us\n" + "\n".join(lines))
    for name, files in (("fitted.npz", {path.name: digest(path)}), ("other.npz", {path.name: "0"})):
        save(tmp_path / name, "H200 SXM", "", {}, fitted_to=files)

    def how(name):
        oracle = Choice("measured", {"path": str(tmp_path / name)})
        return validate(Question(path=path, oracle=oracle)).cells[0].how

    assert (how("fitted.npz"), how("other.npz")) == ("held out", "unseen")


@pytest.mark.parametrize(("question", "error", "message"), [
    ({"gpu": "l40s"}, DataError, "has nothing to compare with; it is of a100-80g, b200, h100, h200"),
    ({"oracle": Choice("learnd")}, UnknownName, "no oracle named 'learnd'; did you mean 'learned'"),
])
def test_questions_without_matching_rows_are_refused(table, question, error, message):
    with pytest.raises(error, match=message):
        validate(Question(**{"path": table, "oracle": Choice("learned"), **question}))


def test_files_that_name_no_gpu_need_one(tmp_path):
    path = tmp_path / "kernels_rms_norm.csv"
    path.write_text("t,h,latency_us\n" + "".join(f"{t},4096,{2 + t / 200}\n" for t in range(1, 20)))
    for gpu, error in (("", DataError), ("h2000", KsimError)):
        with pytest.raises(error, match="do not say of which GPU|no gpu named 'h2000'"):
            validate(Question(path=path, gpu=gpu, oracle=Choice("waves")))
    verdict = validate(Question(path=path, gpu="h200", oracle=Choice("waves")))
    assert verdict.cells[0].points == 19 and verdict.coverage is None


def test_ksim_validate_kernels_writes_json(table, tmp_path):
    done = CliRunner().invoke(app, [str(table), "--oracle", "learned", "--gpu", "h200",
                                    "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    said = json.loads((tmp_path / "out.json").read_text())
    assert {"families", "mean", "coverage", "cells", "left_out"} <= said.keys()
    assert said["families"].keys() == {"gemm"} and said["families"]["gemm"].keys() == {"mape", "median", "points"}
    assert said["mean"] == pytest.approx(said["families"]["gemm"]["mape"])
    assert said["cells"][0]["gpu"] == "h200" and said["cells"][0]["points"] == 72
    last = done.output.strip().splitlines()[-1]
    assert last.startswith(f"mean over families: {said['mean']:.2f} %; {said['coverage']:.1f} % lie in their 90 %")


def test_an_oracle_without_a_profile_prices_kernels_one_by_one(table):
    verdict = validate(Question(path=table, gpu="h200", oracle=Choice("waves")))
    assert verdict.cells[0].how == "unseen" and verdict.cells[0].points == 72

"""`python -m benchmarks.research kernels`: kernels of three architectures, made up, predicted from one another."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.research.learning import validate_apart
from ksim.foundation.errors import ConfigError, DataError
from tests.research.command import research
from tests.validation.kernel_tables import rows

pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "gemm.parquet"
    pq.write_table(pa.Table.from_pylist(rows()), path)
    return path


@pytest.fixture(scope="module")
def without_h200(table):
    """The verdict where neither the H200 nor its twin may teach."""
    return validate_apart(table, leave_out="h200")


def test_an_architecture_is_left_out_with_its_twins(table, without_h200):
    verdict = without_h200
    assert {(cell.gpu, cell.how) for cell in verdict.cells} == {("h200", "without hopper")}
    both = validate_apart(table, leave_out="hopper")
    assert {cell.gpu for cell in both.cells} == {"h100", "h200"}
    # The others are a tenth slower than physics at most, and Hopper's kernels 30 %: nobody told.
    assert all(-35 < cell.bias < -5 for cell in both.cells)
    alone = next(cell for cell in both.cells if cell.gpu == "h200")
    assert (alone.mape, alone.bias) == pytest.approx((verdict.cells[0].mape, verdict.cells[0].bias))


def test_a_twin_that_may_teach_knows_better(table, without_h200):
    twin = validate_apart(table, train=("h100",), gpu="h200")
    assert {(cell.gpu, cell.how) for cell in twin.cells} == {("h200", "from h100")}
    assert twin.mean < without_h200.mean / 2
    assert {cell.gpu for cell in validate_apart(table, train=("hopper",)).cells} == {"a100-80g", "b200"}


def test_the_gpu_left_out_has_no_influence_on_its_prediction(without_h200, tmp_path):
    """Its times three times over: predictions stay, so that they fall short by two thirds."""
    poisoned = [{**row, "latency_us": row["latency_us"] * (3 if row["gpu"] in ("h100", "h200") else 1)}
                for row in rows()]
    pq.write_table(pa.Table.from_pylist(poisoned), tmp_path / "gemm.parquet")
    clean, after = without_h200.cells[0], validate_apart(tmp_path / "gemm.parquet", leave_out="h200").cells[0]
    assert 1 + after.bias / 100 == pytest.approx((1 + clean.bias / 100) / 3, rel=1e-4)


@pytest.mark.parametrize(("apart", "error", "message"), [
    ({"leave_out": "h200", "train": ("h100",)}, ConfigError, "--train: names the GPUs to learn from, and --leave-out"),
    ({}, ConfigError, "--train: names the GPUs to learn from, and --leave-out"),
    ({"leave_out": "h2000"}, DataError, "has nothing to compare with; it is of .*; gemm/bf16: has no rows of 'h2000'"),
    ({"train": ("h2000",)}, DataError, "no GPU to learn it from"),
])
def test_questions_without_an_answer_are_refused(table, apart, error, message):
    with pytest.raises(error, match=message):
        validate_apart(table, **apart)


def test_the_command_says_the_mean_last(table):
    out = research("kernels", table, "--train", "h100", "--gpu", "h200", folder=table.parent)
    assert out.splitlines()[-1].startswith("mean over families: ") and "lie in their 90 %" in out.splitlines()[-1]

"""Measured points from a file: what is found, what lies between and outside, and what is wrong with a file."""

import pytest

from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.cost.oracles.table import Table
from ksim.cost.oracles.waves import Waves
from ksim.flow.batch import Batch
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.units import DType
from ksim.studies.lookup import gpu_of, plugin

H200 = gpu_of("h200")
HEADER = "family,latency_us,m,n,k,dtype,heads,kv_heads,head_dim,decode,prefill,bytes\n"
POINTS = HEADER + """\
gemm,20,64,4096,4096,bf16,,,,,,
gemm,60,1024,4096,4096,,,,,,,
gemm,15,64,4096,4096,fp8,,,,,,
attention,40,,,,,32,8,128,64x1024,,
attention,90,,,,,32,8,128,64x1024,512+0,
silu_mul,5,,,,,,,,,,1000000
"""


@pytest.fixture
def table(tmp_path):
    """Makes an oracle of the text of a file."""

    def make(text=POINTS):
        (tmp_path / "points.csv").write_bytes(text.encode() if isinstance(text, str) else text)
        return Table(tmp_path / "points.csv")

    return make


@pytest.mark.parametrize("kernel, seconds", [
    (Gemm(64, 4096, 4096), 20e-6),
    (Gemm(1024, 4096, 4096), 60e-6),
    (Gemm(64, 4096, 4096, DType.FP8, DType.FP8), 15e-6),
    (AttentionLayer(32, 8, 128).over(Batch.parse("64x1024")), 40e-6),
    (AttentionLayer(32, 8, 128).over(Batch.parse("64x1024", "512+0")), 90e-6),
    (Pointwise("silu_mul", 600_000, 400_000, 0.0, 1), 5e-6),
])
def test_a_measured_point_is_returned_as_it_was_measured(table, kernel, seconds):
    found = table().estimate(kernel, H200)
    assert found.seconds == pytest.approx(seconds, rel=1e-12)
    assert found.source == "points.csv, measured"


def test_between_two_points_lies_what_they_reach_of_waves(table):
    """The nearer one weighs more."""
    oracle, waves = table(), Waves()

    def share(m):
        return oracle.seconds(Gemm(m, 4096, 4096), H200) / waves.seconds(Gemm(m, 4096, 4096), H200)

    low, high = sorted([share(64), share(1024)])
    assert low < share(128) < high and low < share(512) < high
    assert abs(share(128) - share(64)) < abs(share(512) - share(64))
    assert oracle.estimate(Gemm(128, 4096, 4096), H200).source == "points.csv, interpolated"


@pytest.mark.parametrize("kernel, nearest", [(Gemm(32, 4096, 4096), Gemm(64, 4096, 4096)),
                                             (Gemm(4096, 8192, 4096), Gemm(1024, 4096, 4096))])
def test_outside_all_points_the_nearest_says_how_much_of_waves_is_reached(table, kernel, nearest):
    oracle, waves = table(), Waves()
    found = oracle.estimate(kernel, H200)
    assert found.source == "points.csv, extrapolated"
    assert found.seconds / waves.seconds(kernel, H200) == pytest.approx(
        oracle.seconds(nearest, H200) / waves.seconds(nearest, H200))


@pytest.mark.parametrize("kernel", [Pointwise("rope", 1e6, 1e6, 0.0, 1), Gemm(64, 4096, 4096, DType.FP8)])
def test_a_family_or_format_without_points_is_left_to_waves_which_says_so(table, kernel):
    assert table().estimate(kernel, H200) == Waves().estimate(kernel, H200)
    assert table().estimate(kernel, H200).source == "waves"


def test_bound_and_launch_are_those_of_waves(table):
    found, base = (oracle.estimate(Gemm(64, 4096, 4096), H200) for oracle in (table(), Waves()))
    assert (found.bound, found.launch, found.waves, found.idle) == (base.bound, base.launch, base.waves, base.idle)


def test_waves_between_the_points_can_be_set(table, tmp_path):
    table()
    reach = {"rope": {"compute": 1, "memory": 0.5, "start": "100 us"}}
    oracle = plugin("cost.oracles", Choice("table", {"path": str(tmp_path / "points.csv"), "waves": {"reach": reach}}))
    assert oracle.seconds(Pointwise("rope", 1.0, 1.0, 0.0, 1), H200) == pytest.approx(100e-6, rel=1e-3)


def test_a_table_needs_a_path():
    with pytest.raises(ConfigError, match="table: path: is missing"):
        plugin("cost.oracles", Choice("table"))


@pytest.mark.parametrize("text, column", [
    ("family,m,n,k\ngemm,1,2,3\n", "latency_us"), ("latency_us,m,n,k\n9,1,2,3\n", "family"),
    ("family,latency_us,m,n\ngemm,9,1,2\n", "k"), ("family,latency_us\nrope,9\n", "bytes"),
])
def test_a_missing_column_is_named(table, text, column):
    oracle = table(text)
    with pytest.raises(DataError) as error:
        oracle.seconds(Gemm(1, 1, 1), H200)
    assert str(error.value) == f"{oracle.path}:2: has no column {column!r}"


@pytest.mark.parametrize("row, problem", [
    ("gemm,nan,1,2,3", "latency_us = 'nan' is not a positive number"),
    ("gemm,-9,1,2,3", "latency_us = '-9' is not a positive number"),
    ("gemm,0,1,2,3", "latency_us = '0' is not a positive number"),
    ("gemm,fast,1,2,3", "latency_us = 'fast' is not a positive number"),
    ("gemm,9,0,2,3", "m = '0' is not a positive whole number"),
    ("gemm,9,1.5,2,3", "m = '1.5' is not a positive whole number"),
    ("gemm,9,1", "n = '' is not a positive whole number"),
    ("gemm,9,1,2,3,fp7", "'fp7' is not a number format (fp4, int4, fp8, int8, bf16, fp16, fp32)"),
    ("attention,9,,,,,32,8,128,64y1024", "expected something like 64x1024, not '64y1024'"),
    ("attention,9,,,,,32,8,128,,512-1", "expected something like 512+0, not '512-1'"),
    ("attention,9,,,,,32,8,128", "a batch needs at least one sequence, and each of them a new token"),
    ("attention,9,,,,,32,0,128,1x9", "kv_heads = '0' is not a positive whole number"),
    ("attention,9,,,,,32,5,128,1x9", "32 heads do not share 5 kv_heads evenly"),
    ("rope,9,,,,,,,,,,0", "bytes = '0' is not a positive number"),
    ("rope,9,,,,,,,,,,inf", "bytes = 'inf' is not a positive number"),
])
def test_a_bad_row_is_named_by_its_line(table, row, problem):
    """It follows a good one and an empty line."""
    oracle = table(f"{HEADER}gemm,9,1,2,3\n\n{row}\n")
    with pytest.raises(DataError) as error:
        oracle.seconds(Gemm(1, 1, 1), H200)
    assert str(error.value) == f"{oracle.path}:4: is not a measured point: {problem}"


@pytest.mark.parametrize("text, problem", [
    ("", "has no points; expected a header with family and latency_us, and rows"),
    (HEADER, "has no points; expected a header with family and latency_us, and rows"),
    (b"\xff\xfe\x00", "cannot be read: 'utf-8' codec can't decode byte 0xff"),
    ("family,latency_us\n" + "x" * 200_000, "cannot be read: field larger than field limit"),
])
def test_a_file_without_points_is_named(table, text, problem):
    oracle = table(text)
    with pytest.raises(DataError) as error:
        oracle.seconds(Gemm(1, 1, 1), H200)
    assert str(error.value).startswith(f"{oracle.path}: {problem}")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none.csv: cannot be read: .*No such file"):
        Table(tmp_path / "none.csv").seconds(Gemm(1, 1, 1), H200)

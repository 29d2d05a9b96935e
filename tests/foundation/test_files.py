"""Files that unpack: a few bytes cannot become more than any memory."""

import io
import resource
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ksim.calibration.reading.frames import load
from ksim.foundation import files
from ksim.foundation.errors import DataError
from ksim.foundation.files import LONGEST_TABLE, parquet_table
from ksim.oracles.efficiency.profiled import Profile

#: So many numbers take half a GiB.
MANY = 2**26
BOMBS = {
    "zeros": lambda: [pa.array(np.zeros(2**16))] * (MANY // 2**16),
    "a long text": lambda: [pa.DictionaryArray.from_arrays(pa.array(np.zeros(2**12, np.int32)), ["x" * 2**18])],
    "nulls": lambda: [pa.nulls(2**16, pa.int64())] * (MANY // 2**16),
}


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(("kind", "typed"), [*((kind, True) for kind in BOMBS), ("a long text", False)])
def test_a_small_parquet_file_that_unpacks_to_much_is_refused(tmp_path, kind, typed):
    path, chunks = tmp_path / "kernels_gemm.parquet", BOMBS[kind]()
    parquet.write_table(pa.table({"m": pa.chunked_array(chunks)}), path, compression="zstd", store_schema=typed,
                        row_group_size=MANY)
    assert path.stat().st_size < 2**20
    before = most_memory()
    with pytest.raises(DataError, match="kernels_gemm.parquet: unpacks to more than 200 times its size"):
        load(path)
    assert most_memory() - before < files._ANY_RATIO


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = pa.table({"m": [1, None, 3], "dtype": ["bf16", None, "fp8"], "qlens": [[1], [], [2, 3]],
                      "us": [0.5, float("nan"), None], "graph": [True, None, False]}, metadata={"made": "by hand"})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert str(parquet_table(tmp_path / "t.parquet")) == str(parquet.read_table(tmp_path / "t.parquet"))
    assert parquet_table(tmp_path / "t.parquet", ["dtype"]).equals(table.select(["dtype"]))


def test_a_small_profile_that_unpacks_to_much_is_refused(tmp_path):
    path, head = tmp_path / "h200.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"shape": (MANY,), "fortran_order": False, "descr": "<f8"})
    with (zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
          packed.open("header.npy", "w") as member):
        member.write(head.getvalue())
        for _ in range(MANY // 2**17):
            member.write(bytes(2**20))
    before = most_memory()
    with pytest.raises(DataError, match="h200.npz: unpacks to more than 200 times its size"):
        Profile.load(path)
    assert most_memory() - before < files._ANY_RATIO


def test_a_profile_that_says_it_has_more_than_any_memory_is_none(tmp_path):
    path, head = tmp_path / "h200.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"shape": (2**55,), "fortran_order": False, "descr": "<f8"})
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("header.npy", head.getvalue())
    with pytest.raises(DataError, match="is no profile"):
        Profile.load(path)


def test_a_table_in_text_is_not_read_beyond_any_use(tmp_path):
    path = tmp_path / "kernels_gemm.csv"
    path.write_text("m,n,k,latency_us\n1,2,3,4\n")
    with path.open("r+b") as file:
        file.truncate(LONGEST_TABLE + 1)  # which takes no room on the disk
    with pytest.raises(DataError, match="MiB long; a file of its kind is read up to 256 MiB"):
        load(path)

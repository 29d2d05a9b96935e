"""What reading says of a file it cannot use: where, what is wrong, what to do."""

import pytest

from ksim.calibration.reading import read
from ksim.foundation.errors import DataError

GEMM = "family,m,n,k,latency_us\n"
AIC = "framework,version,device,op_name,kernel_source,"


@pytest.mark.parametrize(("name", "text", "message"), [
    ("kernels_gemm.csv", "m,n,latency_us\n1,2,3\n", r"kernels_gemm.csv: has no column 'k'; gemm needs m, n, k, and the "
                                                    r"file has m, n, latency_us"),
    ("kernels_gemm.csv", "m,n,k\n1,2,3\n", r"has no column 'latency_us', the time in microseconds; if it is a list of "
                                           r"points, measure them"),
    ("kernels_gemm.csv", "m,n,k,latency_ms\n1,2,3,4\n", "no column 'latency_us', .*'latency_ms' is not read: its"),
    ("kernels_gemm.csv", GEMM, "has a header and no rows"),
    ("kernels_gemm.csv", "", "is neither Parquet nor CSV: Empty CSV file"),
    ("kernels_gemm.csv", GEMM + "gemm,1,2,3\n", "is neither Parquet nor CSV: .*Expected 5 columns, got 4"),
    ("mine.csv", GEMM + "gemm,1,2,3,4\ngem,1,2,3,4\n", r"mine.csv, line 3: no family of kernels is called 'gem'; did "
                                                       r"you mean 'gemm'\? \(families: gemm, attention"),
    ("mine.csv", "a,b\n1,2\n", r"mine.csv: is in no known format; expected a sweep .*\(its columns: a, b\)"),
    ("kernels_attention.csv", "hq,hkv,d,latency_us\n1,2,3,4\n", "has no column 'qlens' and no 'kvlens'; attention"),
    ("kernels_attention.csv", "hq,hkv,d,qlens,kvlens,latency_us\n8,8,64,1 1,5 5,4\n8,8,64,1 1,5,4\n8,8,64,1,5 5,4\n",
     r"lines 3, 4: qlens and kvlens have an entry for each sequence, but they are 2 and 1 long"),
    ("some_perf.txt", AIC + "gemm_dtype,m,k,latency\nv,1,H200,gemm,x,fp8,1,2,3\n",
     "looks like a table of gemm, but has no column 'n'"),
    ("some_perf.txt", AIC + "latency\nv,1,H200,mystery,x,3\n",
     "is a table of kernels that ksim has no family for; leave it out"),
    ("run.log", "# nThread 1 nGpus 1\n 1024 256 float sum -1 9.51 0.11 0.11 0 9.40 0.11 0.11 0\n",
     "run.log: has no lines '#  Rank  0 ...', so it does not say how many GPUs took part"),
    ("run.log", "# nThread 1\n#  Rank  0 Group  0 Pid  1 on  node device  0 [0x06] NVIDIA H200\n",
     "run.log: has no rows of results"),
    ("run.log", "# nThread 1\n#  Rank  0 Group  0 Pid  1 on  node device  0 [0x06] NVIDIA H200\n"
                " 1024 256 float sum -1 9.51 0.11\n", r"run.log:3: has 2 fields after the root's, but .* prints 8"),
])
def test_a_file_that_cannot_be_used_is_an_error_with_its_place(write, name, text, message):
    with pytest.raises(DataError, match=message):
        read(write(text, name))


def test_a_column_without_lists_is_an_error(parquet):
    path = parquet({"hq": [8], "hkv": [8], "d": [64], "qlens": [1], "kvlens": [5], "latency_us": [4.0]},
                   "kernels_attention.parquet")
    with pytest.raises(DataError, match=r"column 'qlens' holds no lists, such as \[1, 1, 201\]"):
        read(path)


def test_entries_of_lists_that_are_no_whole_numbers_are_missing(parquet):
    path = parquet({"hq": [8] * 3, "hkv": [8] * 3, "d": [64] * 3, "qlens": [[1.0], None, [1.5]],
                    "kvlens": [[None], None, [5.0]], "latency_us": [4.0] * 3}, "kernels_attention.parquet")
    (part,) = read(path)
    assert part.batches.qlens.tolist() == [1, -1] and part.batches.kvlens.tolist() == [-1, 5]
    assert part.batches.sequences.tolist() == [1, 0, 1]


def test_an_unknown_collective_is_an_error(parquet):
    path = parquet({"gpu": ["h200"], "backend": ["nccl"], "version": ["2"], "kernel": ["k"], "op": ["scatter_all"],
                    "dtype": ["half"], "gpus": [8], "bytes": [1024], "latency_us": [9.0]}, "collectives.parquet")
    with pytest.raises(DataError, match=r"row 0: 'scatter_all' is not a collective of all_reduce, "):
        read(path)


def test_missing_files_and_folders_without_measurements_are_errors(tmp_path):
    with pytest.raises(DataError, match=r"none.csv: No such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "notes.txt").write_text("nothing\nof,interest\n")
    with pytest.raises(DataError, match="has no file of measured kernels; expected kernels_<family>.parquet"):
        read(tmp_path)

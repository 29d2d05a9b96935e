"""Judging measurements: each fault is found, its rows named, and nothing else lost."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.checks import AGREEMENT, FEWEST, TooFew, check, gpu_of
from ksim.calibration.measurements import Measurements, Source, tagged
from ksim.calibration.reading import read
from ksim.foundation.errors import DataError, UnknownName
from tests.calibration.samples import EXTRACT
from tests.properties import examples

EXTRACTED = {str(part): part for part in read(EXTRACT)}
GEMM, ATTENTION = EXTRACTED["gemm bf16"], EXTRACTED["attention bf16"]
H200 = gpu_of(GEMM)


def norms(latencies, t=None, h=4096):
    """Measurements of a norm, in microseconds; each of another shape unless *t* says which."""
    count = len(latencies)
    rows = np.arange(1, count + 1) if t is None else np.array(t)
    return Measurements(family="rms_norm", dtype="bf16", columns={"t": rows, "h": np.full(count, h)},
                        tags=tagged("grid", count), seconds=np.array(latencies) * 1e-6, rows=np.arange(2, count + 2),
                        source=Source("my.csv", unit="line"), gpu="h200")


@pytest.mark.parametrize("name", EXTRACTED)
def test_a_sound_sweep_is_kept_whole(name):
    checked = check(EXTRACTED[name], H200)
    assert not checked.excluded and len(checked.kept) + checked.merged == len(EXTRACTED[name])


@pytest.mark.parametrize("value", [np.nan, -1.0, 0.0, np.inf])
def test_rows_without_a_positive_time_are_left_out(value):
    checked = check(norms([2.0, 2.0, value, 2.0, 2.0, 2.0, value, 2.0, 2.0, 2.0]), H200)
    assert checked.kept["t"].tolist() == [1, 2, 4, 5, 6, 8, 9, 10]
    assert checked.remarks() == ["my.csv, lines 4, 8: latency_us is not a positive number; measure again, or delete "
                                 "the rows"]


def test_rows_with_texts_in_place_of_numbers_are_left_out(write):
    good = "".join(f"{t},4096,2.0\n" for t in range(1, 10))
    path = write(f"t,h,latency_us\n{good}x,4096,2.0\n10,4096,fast\n1.5,4096,2\n,4096,\n", "kernels_rms_norm.csv")
    checked = check(read(path)[0], H200)
    assert len(checked.kept) == 9
    assert [str(part).partition("csv, ")[2] for part in checked.excluded] == [
        "lines 11, 13, 14: t is not a positive whole number; correct the rows, or delete them",
        "line 12: latency_us is not a positive number; measure again, or delete the rows"]


def test_a_file_with_mostly_faulty_rows_is_refused():
    with pytest.raises(DataError, match=r"my.csv, lines 2, 3, 4, 5, 6 ... \(20 in all\): t is not a positive whole "
                                        r"number; correct the rows, or delete them \(20 of 30 rows of rms_norm bf16 "):
        check(norms([2.0] * 30, t=[-1] * 20 + [*range(1, 11)]), H200)


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "milliseconds; multiply it by 1,000"),
                                              (1e-6, "seconds; multiply it by 1,000,000"),
                                              (1e3, "nanoseconds; divide it by 1,000")])
@pytest.mark.parametrize("name", EXTRACTED)
def test_times_in_a_wrong_unit_are_refused_with_the_right_unit(name, factor, unit):
    with pytest.raises(DataError, match=f"latency_us of {name} looks like {unit}"):
        check(evolve(EXTRACTED[name], seconds=EXTRACTED[name].seconds * factor), H200)


@pytest.mark.parametrize(("file", "rows"), [("gemm", 166_013), ("attention_context", 50_830), ("mla", 13_251),
                                            ("attention_generation", 62_166), ("moe", 48_762), ("collectives", 1557)])
def test_public_tables_are_read_whole_and_not_mistaken_for_a_wrong_unit(tables, file, rows):
    """Those of all GPUs, and the rows of one of them are counted."""
    parts = read(tables / f"{file}.parquet")
    assert sum(len(part) for part in parts if part.gpu == "h200") == rows
    for part in parts:
        if part.gpu and len(part) >= FEWEST:
            check(part, gpu_of(part))


def test_rows_that_are_faster_than_physics_are_left_out():
    fast = np.array(GEMM.seconds)
    weights = GEMM["n"] * GEMM["k"]
    small = np.flatnonzero((weights == 2**24) & (GEMM["m"] == 1))  # 32 MiB
    large = [int(np.argmax(weights * GEMM["m"]))]
    fast[[*small, *large]] /= 3
    excluded = check(evolve(GEMM, seconds=fast), H200).excluded
    reasons = {part.reason.partition(";")[0]: len(part.rows) for part in excluded}
    assert reasons == {"faster than the memory of H200 SXM allows, and small enough to stay in its L2 cache from one "
                       "repetition to the next": len(small), "faster than the peaks of H200 SXM allow": 1}
    moved = norms([2.0] * 9 + [50.0], t=[*range(1, 10), 100_000])
    assert check(moved, H200).excluded[0].reason.startswith("faster than the memory of H200 SXM allows; is it of")


def test_copies_that_agree_are_merged_and_those_that_do_not_are_left_out():
    checked = check(norms([2.0, 2.1, 2.04, 3.0, 3.5] + [2.0] * 8, t=[1, 1, 1, 2, 2, *range(3, 11)]), H200)
    assert checked.kept["t"].tolist() == [1, *range(3, 11)] and checked.merged == 2
    assert checked.kept.seconds[0] == pytest.approx(2.04e-6)
    assert checked.remarks() == [
        "my.csv, lines 5, 6: rows of one shape are more than 10% apart, as of t=2 h=4096 (3 to 3.5 us in lines 5, 6); "
        "delete those that are wrong",
        "my.csv: 2 rows of rms_norm bf16 repeat a shape and agree; each shape has the median of its rows"]


@examples(50)
@given(st.lists(st.tuples(st.integers(1, 30), st.floats(2.0, 2.4)), min_size=40, max_size=80), st.randoms())
def test_merging_keeps_the_median_of_each_shape_in_any_order(rows, random):
    def outcome(pairs):
        checked = check(norms([us for _, us in pairs], [t for t, _ in pairs]), H200, fewest=0)
        return dict(zip(checked.kept["t"].tolist(), (checked.kept.seconds * 1e6).tolist(), strict=True))
    by_shape = {}
    for t, us in rows:
        by_shape.setdefault(t, []).append(us)
    expected = {t: np.median(us) for t, us in by_shape.items() if max(us) <= AGREEMENT * min(us)}
    shuffled = random.sample(rows, len(rows))
    assert outcome(rows) == pytest.approx(expected) and outcome(shuffled) == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, FEWEST - 1])
def test_too_few_points_are_an_error(count):
    with pytest.raises(TooFew, match=rf"my.csv: {count} usable points? of rms_norm bf16 cannot calibrate it; measure "
                                     rf"at least {FEWEST} beside those tagged random and mixed, or leave the family"):
        check(norms([2.0] * count), H200)


def test_check_points_do_not_count_as_usable():
    made = norms([2.0] * 20)
    with pytest.raises(TooFew, match="5 usable points"):
        check(evolve(made, tags=np.array(["grid"] * 5 + ["random"] * 15)), H200)


def test_malformed_rows_of_attention_are_left_out(write):
    good = "".join(f"8,8,64,1 1,{length} {length},9.0\n" for length in range(100, 110))
    path = write("hq,hkv,d,qlens,kvlens,latency_us\n" + good + "8,3,64,1,5,9\n8,8,64,6,5,9\n8,8,64,,,9\n8,8,64,0,5,9\n",
                 "kernels_attention.csv")
    checked = check(read(path)[0], H200)
    assert [str(part).partition("csv, ")[2] for part in checked.excluded] == [
        "line 12: hkv does not divide hq; query heads share KV heads evenly",
        "line 15: qlens has an entry that is not a positive whole number",
        "line 13: kvlens has an entry less than that of qlens; it counts the new tokens too",
        "line 14: the batch has no sequences"]
    assert len(checked.kept) == 10


def test_measurements_of_an_unknown_gpu_need_a_name(write):
    table = "t,h,latency_us\n" + "".join(f"{t},4096,2.0\n" for t in range(1, 12))
    (part,) = read(write(table, "kernels_rms_norm.csv"))
    with pytest.raises(DataError, match="do not say of which GPU they are; name one with --gpu"):
        gpu_of(part)
    with pytest.raises(UnknownName, match="no gpu named 'h2000'; did you mean 'h200'"):
        gpu_of(part, "h2000")
    known = evolve(part, source=evolve(part.source, device="b300_sxm"))
    with pytest.raises(DataError, match="are of 'b300_sxm', which the catalogue lacks; name one with --gpu"):
        gpu_of(known)
    assert gpu_of(known, "b200").sms == 148


def test_mixed_batches_are_kept_unchanged():
    kept = check(ATTENTION, H200).kept
    assert kept.batches.sequences.tolist() == ATTENTION.batches.sequences.tolist()

"""Checks of measurements before anything is fitted to them: which rows are kept, which are left out and why.

Faults of some rows leave these rows out, and are reported with the rows and the reason.  Faults that make a whole file
useless are a DataError.
"""


import numpy as np
from attrs import evolve, frozen

from ksim.calibration.batches import Column, Floats, Ints
from ksim.calibration.bounds import floor, work
from ksim.calibration.datasheet import gpu_named
from ksim.calibration.measurements import CHECKS, COLLECTIVES, FAMILIES, MISSING, Measurements, listed
from ksim.foundation import catalog
from ksim.foundation.errors import DataError
from ksim.specs.hardware import Gpu

#: The fewest points of a family that calibrate it.
FEWEST = 8
#: A file is refused if more than this share of its rows is faulty.
MOST_EXCLUDED = 0.5
#: Copies of a shape disagree if the slowest is above the fastest by more than this factor.  Two measurements of a shape
#: usually differ by 3 to 5 %.
AGREEMENT = 1.10
#: Rows are impossible below these shares of the least time: clocks may be above the one that peaks are stated at, and
#: kernels that only move memory may write to the L2 cache.
IMPOSSIBLE, IMPOSSIBLE_MOVING = 0.95, 0.5
#: The least seconds of any kernel on any GPU, and about the seconds of an empty kernel.
LEAST, START = 0.1e-6, 2e-6
#: Times are in a wrong unit if most are below FAST x the least time, or if the median is above SLOW x the roofline.
#: The slowest sound table that we know, which is bound by launches from the host, has a median of 130.
FAST, SLOW = 0.1, 300.0
_UNITS = {1e3: "milliseconds; multiply it by 1,000", 1e6: "seconds; multiply it by 1,000,000",
          1e-3: "nanoseconds; divide it by 1,000"}


class TooFew(DataError):
    """A family has too few points to calibrate it."""


@frozen(eq=False)
class Excluded:
    """Rows that are left out; the `reason` also says what to do."""

    reason: str
    where: str
    rows: Ints

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@frozen(eq=False)
class Checked:
    """The rows `kept`, one per shape; `merged` rows that repeat a shape were merged into their median."""

    kept: Measurements
    excluded: tuple[Excluded, ...]
    merged: int

    def remarks(self) -> list[str]:
        """Return a sentence for each thing that was done."""
        remarks = [str(part) for part in self.excluded]
        if self.merged:
            remarks.append(f"{self.kept.source.file}: {self.merged:,} rows of {self.kept} repeat a shape and agree; "
                           f"each shape has the median of its rows")
        return remarks


def gpu_of(measured: Measurements, name: str = "") -> Gpu:
    """Return the GPU that *measured* is of, or the GPU *name*: a name of the catalogue, or the path of a file.

    Raises DataError if the catalogue lacks the GPU that the measurements name and no *name* is given, UnknownName for
    an unknown *name*.
    """
    name = name or measured.gpu or ""
    if not name:
        device = measured.source.device
        whose = f"are of {device!r}, which the catalogue lacks" if device else "do not say of which GPU they are"
        raise DataError(measured.source.file, f"its measurements {whose}; name one with --gpu, or the path of a "
                                              f"file like those that it has ({', '.join(catalog.entries('gpus'))})")
    return gpu_named(name)


def check(measured: Measurements, gpu: Gpu, fewest: int = FEWEST) -> Checked:
    """Check *measured*, which is of *gpu*.

    Raises DataError for times in a wrong unit and if most rows must be left out, TooFew if fewer than *fewest* shapes
    are left to fit to.
    """
    excluded: list[Excluded] = []
    kept = _exclude(measured, _malformed(measured), excluded)
    kept = _exclude(kept, _bad_times(kept), excluded)
    _refuse_most(measured, excluded)
    if len(kept):
        _refuse_units(kept, gpu)
        kept = _exclude(kept, _impossible(kept, gpu), excluded)
    before = len(kept)
    kept, disagreeing = _merge(kept)
    excluded.extend(disagreeing)
    merged = before - len(kept) - sum(len(part.rows) for part in disagreeing)
    usable = int((~np.isin(kept.tags, CHECKS)).sum())
    if usable < fewest:
        raise TooFew(measured.source.file, f"{usable} usable point{'s' * (usable != 1)} of {measured} cannot calibrate "
                                           f"it; measure at least {fewest} beside those tagged {' and '.join(CHECKS)}, "
                                           f"or leave the family out" + "".join(f" ({part})" for part in excluded[:1]))
    return Checked(kept, tuple(excluded), merged)


def _exclude(measured: Measurements, faults: list[tuple[Column, str]], excluded: list[Excluded]) -> Measurements:
    """Leave out the points that a mask of *faults* marks, and note each of them once."""
    good = np.ones(len(measured), dtype=bool)
    for mask, reason in faults:
        if (bad := mask & good).any():
            excluded.append(Excluded(reason, measured.at(bad), measured.rows[bad]))
            good &= ~mask
    return measured if good.all() else measured.take(good)


def _malformed(measured: Measurements) -> list[tuple[Column, str]]:
    """Return masks of the points whose shape is impossible, with the reasons."""
    needs = FAMILIES[measured.family].needs
    faults = [(measured[name] <= 0, f"{name} is not a positive whole number; correct the rows, or delete them")
              for name in needs]
    if measured.family == "attention":
        heads, kv_heads = measured["hq"], np.maximum(measured["hkv"], 1)
        faults.append((heads % kv_heads != 0, "hkv does not divide hq; query heads share KV heads evenly"))
    if measured.family == "moe":
        faults.append((measured["topk"] > measured["e"], "topk is more than there are experts (e)"))
    if measured.batches:
        batches = measured.batches
        runs = {"qlens has an entry that is not a positive whole number": batches.qlens <= 0,
                "kvlens has an entry less than that of qlens; it counts the new tokens too":
                    batches.kvlens < batches.qlens,
                "the number of sequences is not a positive whole number": batches.counts <= 0}
        faults += [(batches.total(wrong.astype(np.int64)) > 0, reason) for reason, wrong in runs.items()]
        faults.append((batches.sequences == 0, "the batch has no sequences"))
    return faults


def _bad_times(measured: Measurements) -> list[tuple[Column, str]]:
    """Return a mask of the points without a positive time, with the reason."""
    bad = ~(np.isfinite(measured.seconds) & (measured.seconds > 0))
    return [(bad, "latency_us is not a positive number; measure again, or delete the rows")]


def _refuse_most(measured: Measurements, excluded: list[Excluded]) -> None:
    left_out = sum(len(part.rows) for part in excluded)
    if left_out > MOST_EXCLUDED * len(measured):
        worst = max(excluded, key=lambda part: len(part.rows))
        raise DataError(worst.where, f"{worst.reason} ({left_out:,} of {len(measured):,} rows of {measured} "
                                     f"cannot be used)")


def _refuse_units(measured: Measurements, gpu: Gpu) -> None:
    """Raise DataError for times that must be in another unit, and name that unit."""
    least = floor(measured, gpu)
    too_fast = float(np.mean(measured.seconds < np.maximum(FAST * least, LEAST)))
    slowness = float(np.median(measured.seconds / (least + START)))
    if too_fast > 0.5:
        what = f"{too_fast:.0%} of the rows are {1 / FAST:.0f} times faster than {gpu.name} can be, or more"
    elif slowness > SLOW:
        what = f"half of the rows are {slowness:,.0f} times slower than the roofline of {gpu.name}, or more"
    else:
        return
    unit = min(_UNITS, key=lambda factor: abs(np.log10(slowness * factor)))
    raise DataError(measured.source.file, f"latency_us of {measured} looks like {_UNITS[unit]} ({what})")


def _impossible(measured: Measurements, gpu: Gpu) -> list[tuple[Column, str]]:
    """Return masks of the points that took less time than physics allows, with the reasons."""
    least, least_work = floor(measured, gpu), work(measured)
    if measured.family not in COLLECTIVES and not least_work.flops.any():  # may find its data in the cache
        impossible = (measured.seconds < IMPOSSIBLE_MOVING * least) & (least_work.bytes > gpu.l2)
        return [(impossible, f"faster than the memory of {gpu.name} allows; is it of another GPU?")]
    impossible = measured.seconds < IMPOSSIBLE * least
    warm = impossible & (least_work.bytes < gpu.l2) & (least_work.bytes > 0)
    return [(warm, f"faster than the memory of {gpu.name} allows, and small enough to stay in its L2 cache from one "
                   f"repetition to the next; time with buffers that rotate"),
            (impossible, f"faster than the peaks of {gpu.name} allow; is it of another GPU or number format?")]


def _merge(measured: Measurements) -> tuple[Measurements, list[Excluded]]:
    """Merge the rows of each shape into their median; leave out shapes whose rows disagree."""
    if len(measured) < 2:
        return measured, []
    # Points of one shape under different tags are a grid and its check, which must not be merged.
    group = _groups([*measured.shape(), measured.tags])
    order = np.lexsort((measured.seconds, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=MISSING))
    ends = np.append(starts[1:], len(order)) - 1
    if len(starts) == len(measured):
        return measured, []
    times = measured.seconds[order]
    median = (times[(starts + ends) // 2] + times[(starts + ends + 1) // 2]) / 2
    agree = times[ends] <= AGREEMENT * times[starts]
    first = np.minimum.reduceat(order, starts)  # the first row represents its shape
    wrong = np.flatnonzero(~agree[group])
    excluded = [Excluded(_disagreement(measured, times, starts[~agree], ends[~agree], order),
                         measured.at(wrong), measured.rows[wrong])] if len(wrong) else []
    seconds: Floats = np.array(measured.seconds)
    seconds[first] = median
    return evolve(measured, seconds=seconds).take(np.sort(first[agree])), excluded


def _groups(columns: list[Column]) -> Ints:
    """Number the points 0, 1, ..., with equal numbers for equal shapes."""
    group = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        group = np.unique(group * len(values) + codes, return_inverse=True)[1]
    return group


def _disagreement(measured: Measurements, times: Floats, starts: Ints, ends: Ints, order: Ints) -> str:
    worst = int(np.argmax(times[ends] / times[starts]))
    fast, slow = starts[worst], ends[worst]
    rows = np.sort(measured.rows[order[fast:slow + 1]])
    return (f"rows of one shape are more than {AGREEMENT - 1:.0%} apart, as of {measured.describe(int(order[fast]))} "
            f"({times[fast] * 1e6:.4g} to {times[slow] * 1e6:.4g} us in {listed(rows, measured.source.unit)}); "
            f"delete those that are wrong")

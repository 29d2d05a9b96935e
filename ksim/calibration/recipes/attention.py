"""Attention: which rows are fitted, and which constants are free.

One set of constants serves decodes and chunks, with half of the weight on each of the two public tables.  *Learned*
from other architectures, there is no model on top: trees, ridge regression and half of the trees changed the mean over
left-out architectures by less than 0.6 points and made Blackwell worse.  *Measured* on a GPU, a Gaussian process models
what the refitted constants leave.

`norm` is held at 4 for our own sweep, as in a simulation of ragged batches whose pieces run on SMs that share a memory.
Left free, it makes the memory faster than its data sheet (1.07) for the same error.  Nothing is fitted to rows tagged
mixed, but they were looked at to see which parts of the kernel's host code matter, and that decodes come first in a
batch.
"""

import numpy as np

from ksim.calibration.batches import Floats, Ints, PointBatches
from ksim.calibration.bounds import formats
from ksim.calibration.dataset import Dataset, Mask, RowRule, group_by, in_tables, other_engines
from ksim.calibration.fitting import Candidate, FitSpec
from ksim.calibration.measurements import Measurements, Points
from ksim.calibration.regression import NOTHING, Free, Regressor
from ksim.oracles.efficiency.families import Shapes, family
from ksim.specs.hardware import Gpu

__all__ = ["FIT_SPECS"]

#: A constant that the rows say nothing about stays at its guess.
FREE = {
    "start": Free(1e3, 1e4, 5e4), "write": Free(0.0, 4e3, 2e4), "combine": Free(0.0, 5e3, 2e4),
    "combine_split": Free(0.0, 100.0, 1e3), "copy": Free(0.0, 5e3, 3e4), "block": Free(1e3, 5e3, 2e4),
    "chunk_block": Free(1e3, 5e3, 2e4), "step": Free(0.0, 500.0, 5e3), "tensor": Free(0.3, 0.8, 1.5),
    "exponential": Free(0.0, 0.5, 3.0), "governor": Free(0.0, 0.1, 0.5), "partial": Free(0.2, 1.0, 1.5),
    "tail": Free(0.0, 0.5, 1.5), "memory": Free(0.5, 0.9, 1.1), "l2": Free(0.05, 0.3, 2.0),
    "resident": Free(0.3, 1.0, 2.0), "width": Free(0.03, 0.1, 1.0), "activations": Free(0.0, 1.0, 4.0),
    "written": Free(0.0, 1.0, 4.0), "norm": Free(1.0, 2.0, 8.0), "hidden": Free(0.0, 1.0, 2.0),
    "reread": Free(0.0, 0.5, 3.0),
}
#: Constants that a sweep says nothing about, because its kernels write no keys and find nothing in the L2 cache.
UNSEEN = ("write", "copy", "l2", "resident", "width", "written")
SWEPT_NORM = 4.0
#: vLLM releases whose rows contain the kernel that writes new keys and values.
WRITING = "0.24"
TABLE_INPUTS = ("log_sequences", "log_queries", "log_keys", "log_kv_heads", "log_group", "log_waves", "log_bound",
                "log_start")
SWEEP_INPUTS = ("log_queries", "log_keys", "log_waves", "log_bound", "log_start", "chunk_share")
PLACE = ("log_start", "log_bound", "log_sequences", "log_queries", "log_keys", "log_kv_heads", "log_group",
         "log_head_dim", "chunk_share")

#: Rows left out of fits and tests.
RULES = (
    other_engines("another engine's context kernel on A100"),
    RowRule("fewer than 128 tokens: all of them are at the floor of the launch",
            lambda rows: in_tables(rows) & (_tokens(rows) < 128)),
)
#: The rows of the published baselines; others are judged separately.
CORE = RowRule("head_dim 128, no window", lambda rows: ~in_tables(rows) | ((rows["d"] == 128) & (_window(rows) <= 0)))


def _tokens(rows: Measurements) -> Ints:
    assert rows.batches is not None
    return rows.batches.total(rows.batches.counts * rows.batches.kvlens)


def _window(rows: Points) -> Ints:
    window: Ints = rows.columns.get("window", np.zeros(len(rows), dtype=np.int64))
    return window


def dataset(rows: Measurements, gpu: Gpu) -> Dataset:
    """Make a dataset of a table, whose runs read the same cache again, or of a sweep, whose caches rotate."""
    reused = not rows.source.swept
    writes = reused and rows.source.version.startswith(WRITING)
    return Dataset.of(rows, gpu, attention_columns(rows, reused, writes), groups=group_by(rows, "hq", "hkv", "d"))


def attention_columns(points: Points, reused: bool, writes: bool) -> Shapes:
    """Return the columns of `ksim.oracles.efficiency.attention`; *reused* caches are read again in every run."""
    assert points.batches is not None
    batches, cache = points.batches, formats(points)[0].bytes
    window = np.repeat(_window(points), np.diff(batches.starts))
    new, length, count = batches.qlens, batches.kvlens, batches.counts
    bounded = np.where(window > 0, window, length)
    seen = np.minimum(length, bounded + new - 1)  # keys that a sequence reads at all
    growing = np.clip(bounded - (length - new), 0, new)  # queries with less than a whole window before them
    pairs = growing * (length - new) + growing * (growing + 1) // 2 + (new - growing) * bounded
    decodes, chunks = np.where(new == 1, count, 0), np.where(new > 1, count, 0)
    total = {
        "decodes": batches.total(decodes), "decode_keys": batches.total(decodes * seen),
        "decode_longest": _largest(batches, np.where(new == 1, seen, 0)),
        "chunks": batches.total(chunks), "chunk_queries": batches.total(chunks * new),
        "chunk_keys": batches.total(chunks * seen), "chunk_pairs": batches.total(chunks * pairs),
        "chunk_unmasked_pairs": batches.total(chunks * new * seen),
        "chunk_most": _largest(batches, np.where(new > 1, new, 0)),
        "chunk_longest": _largest(batches, np.where(new > 1, np.minimum(seen, bounded), 0)),
        "heads": points["hq"], "kv_heads": points["hkv"], "head_dim": points["d"],
    }
    columns: dict[str, Floats] = {name: column.astype(np.float64) for name, column in total.items()}
    entry = 2 * columns["kv_heads"] * columns["head_dim"] * cache
    activations = 4 * columns["chunk_queries"] * columns["heads"] * columns["head_dim"]
    touched = (columns["decode_keys"] + columns["chunk_keys"] * (1 + writes)) * entry + activations
    columns["cache_bytes"] = np.full(len(points), cache)
    columns["footprint"] = touched if reused else np.full(len(points), np.inf)
    columns["writes"] = np.full(len(points), float(writes))
    return {name: columns[name] for name in family("attention").inputs}


def _largest(batches: PointBatches, by_run: Ints) -> Ints:
    largest: Ints = np.maximum.reduceat(by_run, batches.starts[:-1])
    return largest


def grid(rows: Measurements) -> Mask:
    """Mark every 15th row in the order of heads, KV heads, batch and length."""
    assert rows.batches is not None
    order = np.lexsort((rows.batches.kvlens, rows.batches.counts, rows["hkv"], rows["hq"]))
    rank = np.empty(len(rows))
    rank[order] = np.arange(len(rows))
    chosen: Mask = rank % 15 == 7
    return chosen


FIT_SPECS = tuple(
    FitSpec.of(f"attention/{dtype}", "attention", measures="attention", dtype=dtype, dataset=dataset, free=FREE,
              like=() if dtype == "bf16" else ("attention/bf16",), rules=RULES, core=CORE, grid=grid, place=PLACE,
              learned=Candidate(NOTHING), table=Candidate(Regressor("interpolation"), TABLE_INPUTS),
              sweep=Candidate(Regressor("interpolation"), SWEEP_INPUTS),
              held_in_sweeps={**{name: FREE[name].guess for name in UNSEEN}, "norm": SWEPT_NORM})
    for dtype in ("bf16", "fp8"))

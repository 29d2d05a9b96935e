"""The latency oracles alone: loading a profile, pricing a step of 80 layers, pricing 100,000 shapes at once."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside
from ksim.compute.graph import BatchDependent, Collective
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.foundation import process
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.oracles import estimates
from ksim.oracles.efficiency.families import family
from ksim.oracles.efficiency.profiled import Profile, Profiled, shipped
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import gpu_of
from ksim.scenario.scenario import Scenario

ORACLES = ("waves", "learned", "measured")
MODEL, GPU = "llama-3.1-70b", "h200"
SHAPES = 100_000
#: CPU time that each with a profile may take, by the column it stands in, whose last word is the unit.
LIMITS = {"kernels, new us": 100.0, "step, known us": 10.0, "load, mixed us": 24.0, "new tokens, load us": 120.0,
          "run of 8, load us": 24.0, "64 at once us": 6.0, "512 at once us": 3.5, "100k shapes s": 0.5,
          "load ms": 50.0}
#: Steps that are priced at once.
TOGETHER = (64, 512)


def findings() -> Findings:
    """Each oracle."""
    found, yardstick = beside(lambda: {oracle: figures(oracle) for oracle in ORACLES})
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    rows = [(oracle, *(f"{row[column]:.3g}" if column in row else "" for column in columns))
            for oracle, row in found.items()]
    title = (f"CPU time of the oracles, on a step of {MODEL}, one rank of eight {GPU}s;"
             f" {yardstick:.2f} us for an event of SimPy")
    judged = [_goal(oracle, column).judged(found[oracle][column], yardstick)
              for oracle in ("learned", "measured") for column in LIMITS]
    return Findings([Sheet(title, ("oracle", *columns), rows)], judged)


def _goal(oracle: str, column: str) -> Goal:
    what, _, unit = column.rpartition(" ")
    return Goal(f"{oracle}: {what}", LIMITS[column], f"CPU {unit}")


def figures(oracle: str) -> dict[str, float]:
    """CPU times of *oracle*, by what they are of; the median of what is done often."""
    timer = _timer(oracle)
    timer.step_cost(Batch.of((1, 100)))  # profiles are read when they are first needed
    tokens = np.random.default_rng(1).permutation(np.arange(2, 8192))[:300].tolist()
    steps = [Batch.of((count, 0)) for count in tokens]
    with process.paused():
        found = {
            "kernels, new us": 1e6 * float(np.median([_kernels(timer, count) for count in tokens[:100]])),
            "step, new us": 1e6 * _median(timer.step_cost, steps),
            "step, known us": 1e6 * _median(timer.step_cost, steps),
            "decode, steady us": 1e6 * _decoding(timer),
            "load, mixed us": 1e6 * _loading(timer),
            "new tokens, load us": 1e6 * _median(timer.summarize,
                                                 [Batch.of((count, 0)) for count in range(9000, 9300)]),
            "run of 8, load us": 1e6 * _running(timer, 8),
            **{f"{count} at once us": 1e6 * _together(timer, count) for count in TOGETHER},
        }
    if oracle != "waves":
        found["100k shapes s"] = min(_bulk(oracle) for _ in range(3))
        found["load ms"] = 1e3 * min(_load(oracle) for _ in range(3))
    return found


def _timer(oracle: str) -> StepTimer:
    one = {"kind": "fixed", "value": 1}
    table = {"model": MODEL, "gpu": GPU, "oracle": oracle, "serve": {"tensor_parallel_size": 8},
             "workload": {"synthetic": {"arrivals": {"process": "burst"}, "prompt": one, "output": one}}}
    timer = Deployment.of(Scenario.of(table)).timers()[0]
    assert isinstance(timer, StepTimer), "a step is one pass"
    return timer


def _seconds(action: Callable[[], Any]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


def _median(action: Callable[[Any], Any], arguments: list[Any]) -> float:
    return float(np.median([_seconds(partial(action, argument)) for argument in arguments]))


def _kernels(timer: StepTimer, tokens: int) -> float:
    """Price the kernels of a step of *tokens*, each distinct one once."""
    blocks = timer.model.graph(tokens, 1, timer.shard).blocks
    kernels = [op.kernel for block in blocks for op in block.ops
               if not isinstance(op.kernel, BatchDependent | Collective)]
    return _seconds(lambda: estimates(timer.oracle, list(dict.fromkeys(kernels)), timer.gpu))


def _decoding(timer: StepTimer, steps: int = 1000) -> float:
    """A step of 64 sequences that all go on decoding."""
    offsets = Offsets(range(1000, 1064))
    batches = [Batch(Contexts(offsets, shift), (), 64, 64) for shift in range(steps)]
    return _seconds(lambda: [timer.step_cost(batch) for batch in batches]) / steps


def _loading(timer: StepTimer) -> float:
    """What a step asks of the clock, a chunk beside 64 sequences that decode: its attention is always new."""
    windows = [_window(np.random.default_rng(seed), 512)[1::2] for seed in range(6)]
    timer.summarize(windows[0][0])
    return min(_seconds(partial(_load_each, timer, window)) / len(window) for window in windows)


def _load_each(timer: StepTimer, batches: list[Batch]) -> None:
    for batch in batches:
        timer.summarize(batch)


def _running(timer: StepTimer, turns: int, runs: int = 100) -> float:
    """What a step asks of the clock in runs of so many, in which 64 sequences only go on decoding."""
    offsets = Offsets(range(1000, 1064))
    batches = [[Batch(Contexts(offsets, turns * run + turn), (), 64, 64) for turn in range(turns)]
               for run in range(runs)]
    return min(_seconds(lambda: [timer.summarize(each) for each in batches]) for _ in range(5)) / (turns * runs)


def _together(timer: StepTimer, count: int) -> float:
    """A step of so many that are priced at once: 64 sequences, and with every other step a chunk, that come and go."""
    random = np.random.default_rng(count)
    windows = [_window(random, count) for _ in range(12)]
    timer.price(windows[0])
    return float(np.median([_seconds(partial(timer.price, window)) for window in windows])) / count


def _window(random: np.random.Generator, count: int) -> list[Batch]:
    contexts = [Offsets(random.integers(100, 4000, 64).tolist()) for _ in range(count // 8)]
    chunks = [((448, int(start)),) for start in random.integers(0, 1000, count)]
    return [Batch(Contexts(contexts[step // 8], step), chunks[step] if step % 2 else (), 64, 512 if step % 2 else 64)
            for step in range(count)]


def _bulk(oracle: str) -> float:
    gpu, random = gpu_of(GPU), np.random.default_rng(0)
    shapes = {name: random.integers(low, high, SHAPES).astype(float)
              for name, low, high in (("m", 1, 8192), ("n", 1024, 32768), ("k", 1024, 16384))}
    constant = {"weight_bytes": 2.0, "activation_bytes": 2.0, "peak": 989.5e12, "footprint": np.inf}
    shapes |= {name: np.full(SHAPES, value) for name, value in constant.items()}
    made = plugin("oracles", Choice(oracle))
    profiled: Profiled = made.prices(gpu)
    return _seconds(lambda: profiled.price(family("gemm"), ("gemm/bf16",), shapes, gpu))


def _load(oracle: str) -> float:
    """Open a profile and read everything in it."""

    def load() -> None:
        profile = Profile.load(shipped(GPU if oracle == "measured" else "learned"))
        for name in profile:
            profile[name]

    return _seconds(load)

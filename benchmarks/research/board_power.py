"""The power of a board, fitted to the watts of whole deployments at their measured times.

A steady state is a decode of all requests in flight, and a prompt as often as an output ends.  What its kernels do is
priced once; idle power, busy watts, the watts of experts and the joules of a FLOP follow by least squares.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from benchmarks.research.public import NotRun, SteadyState, assumptions
from ksim.calibration.regression import library
from ksim.cost.step import Timer
from ksim.flow.batch import Batch
from ksim.flow.steps import StepCost
from ksim.foundation.errors import ConfigError
from ksim.scenario.hardware import gpu_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.specs.hardware import Gpu

#: Rows with so many in flight are fitted: above, the host and the prompts decide too much of the time.
_MOST = 128
#: Boards nearer to their limit than that draw what it leaves them.
_LIMITED = 0.94
#: What is held at what a file says, by GPU: the H100 has the die of the H200, which was measured kernel by kernel; a
#: FLOP of the B200 takes what the rates of rows at the power limit allow.
HELD: Mapping[str, tuple[str, ...]] = {"h100": ("idle", "flop"), "b200": ("flop",)}
#: Idle power is at most this share of the limit.
_IDLE = 0.25
#: The residual, relative to the watts, from which on an error counts less than its square.
_SCALE = 0.05
TERMS = ("idle", "busy", "bf16", "fp8", "fp4", "flop")


@frozen
class Work:
    """What one GPU does a second in a steady state: shares of time in which SMs are busy, outside and in grouped GEMMs
    by the format of weights (`bf16`, `fp8`, `fp4`), and the watts of FLOP and of memory and links by its file."""

    busy: float = 0.0
    bf16: float = 0.0
    fp8: float = 0.0
    fp4: float = 0.0
    flop: float = 0.0
    rest: float = 0.0


@frozen
class Fit:
    """The `watts` of `TERMS`, the joules of a FLOP over those in the file (`flop`), and relative errors of the watts of
    rows that were fitted and of those apart."""

    gpu: str
    watts: Mapping[str, float]
    fitted: NDArray[np.float64]
    apart: NDArray[np.float64]


def work_of(row: SteadyState) -> Work:
    """What a GPU of *row* does a second, at the measured time of its steps; raises NotRun."""
    deployment = Fleet.of(Scenario.of(row.table, row.name)).pools[0].deployment
    timer, gpu = deployment.timers()[0], deployment.gpu
    sequences = max(1, round(row.mean_in_flight / row.dp))
    prompt = round(assumptions().tasks[row.task].prompt)
    context = prompt + round(row.output_len_mean * (1 + row.output_len_cv**2) / 2)
    decode = [(1, context)] * sequences
    often = sequences / row.output_len_mean
    parts = ((_step(timer, decode, row.dp), 1 - often), (_step(timer, [*decode, (prompt, 0)], row.dp), often))
    seconds = row.mean_in_flight / row.output_tok_s
    done = np.sum([weight * _done(step, gpu) for step, weight in parts], axis=0) / seconds
    return Work(*done.tolist())


def _step(timer: Timer, sequences: Sequence[tuple[int, int]], ranks: int) -> StepCost:
    batch = Batch.of(*sequences)
    return timer.step_cost(batch, (batch.tokens,) * ranks if ranks > 1 else ())


def _done(step: StepCost, gpu: Gpu) -> NDArray[np.float64]:
    """The fields of `Work` in a whole *step*: seconds, and joules."""
    power, names = gpu.power, ("busy", "bf16", "fp8", "fp4")
    done = dict.fromkeys((*names, "flop", "rest"), 0.0)
    for kernel, runs in step.counted():
        costs = kernel.costs
        caches = costs.bytes * power.l2
        kind = _format(kernel.shape) if kernel.family == "grouped_gemm" else "busy"
        draws = power.busy if kind == "busy" else next(
            (watts for dtype, watts in power.experts.items() if str(dtype) == kind), power.busy)
        done[kind] += runs * costs.sm_active_joules / draws
        done["flop"] += runs * (costs.sm_action_joules - caches)
        done["rest"] += runs * (costs.joules - costs.sm_active_joules - costs.sm_action_joules + caches)
    return np.array([*done.values()])


def _format(shape: str) -> str:
    """The number format of the weights in the *shape* of a grouped GEMM, without its scales."""
    weights = str(shape).rpartition(" ")[2]
    return next(kind for kind in ("fp8", "fp4", "bf16") if kind in weights)


def fit(name: str, rows: Sequence[SteadyState]) -> Fit:
    """Fit the power of GPU *name* to those of *rows* that are marked for it; raises ConfigError without such rows,
    and MissingExtra without scipy."""
    gpu = gpu_of(name)
    known = [(row, work) for row in rows if row.gpu.lower() == name and row.max_num_seqs <= _MOST
             if (work := _work(row)) is not None]
    watts = np.array([row.watts_all_gpus / row.gpus for row, _ in known])
    marked = np.array([row.fitted for row, _ in known], bool)
    if not marked.any():
        raise ConfigError(name, "no row of it is marked to be fitted (benchmarks/research/recipes/public.toml)")
    does = np.array([[1.0, work.busy, work.bf16, work.fp8, work.fp4, work.flop] for _, work in known])
    rest = np.array([work.rest for _, work in known])
    chosen = marked & (watts < _LIMITED * gpu.power.limit)
    start = np.array([gpu.power.idle, *[gpu.power.busy] * 4, 1.0])
    free = np.array([term not in HELD.get(name, ()) for term in TERMS]) & (does[chosen].any(axis=0))

    def predicted(values: NDArray[np.float64]) -> NDArray[np.float64]:
        terms = start.copy()
        terms[free] = values
        drawn: NDArray[np.float64] = does @ terms + rest
        return drawn

    most = np.array([_IDLE * gpu.power.limit, *[np.inf] * 5])[free]
    found = library("scipy.optimize").least_squares(
        lambda values: np.log(predicted(values)[chosen] / watts[chosen]), start[free], bounds=(0.0, most),
        loss="soft_l1", f_scale=_SCALE)
    terms = dict(zip(TERMS, start, strict=True)) | dict(
        zip(np.array(TERMS)[free].tolist(), found.x.tolist(), strict=True))
    errors = np.minimum(predicted(found.x), gpu.power.limit) / watts - 1
    return Fit(name, terms, errors[marked], errors[~marked])


def _work(row: SteadyState) -> Work | None:
    try:
        return work_of(row)
    except NotRun:
        return None

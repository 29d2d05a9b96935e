"""Sample files of measurements for tests: an extract of a sweep, a log of nccl-tests, rows of power tables."""

from pathlib import Path

from attrs import evolve

from benchmarks.research.energy.prediction import SustainedKernel
from ksim.compute.kernels.basic import Gemm, Pointwise
from ksim.cost.energy import joules
from ksim.scenario.hardware import gpu_of

#: A part of a sweep over an H200.
EXTRACT = Path(__file__).parent / "data"
H200 = gpu_of("h200")
LOG = """\
# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
# Collective test starting: {tool}
# nThread 1 nGpus 2 minBytes 1024 maxBytes 1048576 step: 32(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid  12574 on  node-1 device  0 [0000:06:00] NVIDIA H200
#  Rank  1 Group  0 Pid  12574 on  node-1 device  1 [0000:09:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop root    time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     {redop}  -1     9.51    0.11    0.11       0     9.40    0.11    0.11       0
       32768          8192     float     {redop}  -1    12.01    2.73    2.73       0    11.85    2.77    2.77     N/A
     1048576        262144     float     {redop}  -1    25.31   41.43   41.43       0    24.99   41.96   41.96       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 14.7
"""

BOOST = H200.power.clocks.boost
#: Kernels that separate all terms: bound by arithmetic, reading, writing, in the cache, and waiting; at two clocks.
KERNELS = [("gemm", Gemm(m, n, 4096), 2e-4, clock) for m, n in ((4096, 4096), (8192, 1024), (512, 8192), (16, 28672))
           for clock in (BOOST, 1.5e9)]
KERNELS += [("copy", Pointwise("copy", read, written, 0.0, 1), seconds, BOOST) for read, written, seconds in (
    (4e8, 0.0, 1e-4), (1e8, 4e8, 1.5e-4), (5e6, 5e6, 4e-6), (1e6, 2e6, 4e-5))]


def row(family, kernel, seconds, clock, power=H200.power):
    """A kernel that draws exactly what *power* predicts, with its SMs at *clock*."""
    gpu = evolve(H200, power=power)
    made = SustainedKernel(family, "bf16", str(kernel), (kernel,), seconds, seconds, 1.0, clock, BOOST)
    by_kernel = [joules(counted, power) for counted in made.actions(gpu)]
    energy = power.idle * seconds + sum(
        part.core * power.clocks.saved(clock) + part.busy * power.clocks.drawn(clock) + part.rest for part in by_kernel)
    return evolve(made, joules=energy)


def rows(power=H200.power):
    return [row(*kernel, power) for kernel in KERNELS]


def sweep(*lines):
    """Rows of a sweep, each with the columns of all rows."""
    usual = {"watts": 500.0, "energy_mj_per_kernel": 50.0, "latency_us": 100.0, "graph_us": 95.0, "sm_mhz": 1980.0,
             "dtype": None}
    names = dict.fromkeys(name for line in lines for name in line)
    return [{**dict.fromkeys(names), **usual, **line} for line in lines]


IDLE = {"family": "idle", "watts": 120.0, "sm_mhz": None}
COPY = {"family": "copy", "bytes": 1 << 20}


COLUMNS = ("m", "n", "k", "batch", "isl", "step", "num_heads", "num_kv_heads", "head_dim", "window", "tokens", "hidden",
           "inter", "topk", "experts", "tp", "ep")


def line(op="gemm", **changes):
    """A row of a public table: columns that a kind of kernel does not have are -1 or empty."""
    return {**dict.fromkeys(COLUMNS, -1), "gpu": "h200_sxm", "backend": "vllm", "version": "0.22.0", "kernel": "any",
            "op": op, "dtype": "bfloat16", "kv_dtype": "", "distribution": "", "power_w": 500.0, "latency_us": 100.0,
            **changes}


def gemm(m=16, n=4096, k=4096, **changes):
    return line(m=m, n=n, k=k, **changes)


def attention(op, isl, step, **changes):
    shape = {"batch": 8, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "window": 0, "kv_dtype": "bfloat16"}
    return line(op, isl=isl, step=step, **{**shape, **changes})

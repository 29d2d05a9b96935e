"""Public tables of kernels that are made up: of four GPUs, each slower than physics by a factor of its own."""

from itertools import product

import numpy as np

from ksim.calibration.measurements import Measurements, Source
from ksim.calibration.recipes import FIT_SPECS
from ksim.scenario.hardware import gpu_of

GEMM = next(spec for spec in FIT_SPECS if spec.name == "gemm/bf16")
#: By how much each GPU's kernels are slower than our physics has it.
SLOWER = {"a100-80g": 1.1, "h100": 1.3, "h200": 1.3, "b200": 0.97}
GUESS = {name: free.guess for name, free in {**GEMM.free, **GEMM.single_gpu}.items()}


def rows(names=tuple(SLOWER)):
    """Public-table rows of dense products, as our physics and a factor for each GPU has them."""
    shapes = np.array([*product((1, 16, 64, 256, 1024, 4096), (1024, 2048, 4096, 8192), (1024, 4096, 8192))])
    table = []
    for name in names:
        gpu = gpu_of(name)
        empty = Measurements(
            family="gemm", dtype="bf16", columns=dict(zip("mnk", shapes.T, strict=True)),
            tags=np.full(len(shapes), ""), seconds=np.ones(len(shapes)), rows=np.arange(len(shapes)),
            source=Source("x", "vllm"), gpu=name)
        part = GEMM.dataset(empty, gpu).parts[0]
        seconds = SLOWER[name] * GEMM.family.physics(gpu, part, {**GEMM.held, **GUESS}).seconds
        table += [{"gpu": name, "backend": "vllm", "version": "0.24.0", "kernel": "torch", "timing": "graph",
                   "dtype": "bfloat16", "m": m, "n": n, "k": k, "latency_us": 1e6 * took}
                  for (m, n, k), took in zip(shapes.tolist(), seconds.tolist(), strict=True)]
    return table

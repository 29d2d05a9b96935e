"""Simulate LLM inference serving, kernel by kernel.

Data flows one way, and each package answers one question about it:

    specs       what is simulated?          workload    what arrives?
    compute     what must be computed?      cost        how long, how much energy?
    memory      what stays cached?          scheduling  what runs next?
    runtime     what happens when?          cluster     where does it happen?
    results     how good was it?            studies     what should be tried?
    calibration what do measurements teach?

`foundation` and `flow` (the values that travel) lie under all of them.
"""

from importlib import import_module
from typing import Any

__all__ = ["FENCES", "LAYERS", "KsimError", "Layer", "PowerSettings", "Result", "Scenario", "attend", "communicate",
           "op", "pointwise", "ring", "simulate", "ulysses"]

#: Which packages each package may import.  `tests/test_architecture.py` enforces it.
LAYERS: dict[str, set[str]] = {
    "foundation": set(),
    "specs": {"foundation"},
    "flow": {"foundation"},
    "workload": {"foundation", "flow"},
    "compute": {"foundation", "specs.deployment", "specs.experts", "flow"},
    "cost": {"foundation", "specs", "flow", "compute"},
    "calibration": {"foundation", "specs", "flow", "compute", "cost"},
    "memory": {"foundation", "flow"},
    "scheduling": {"foundation", "specs.deployment", "flow", "memory"},
    "runtime": {"foundation", "specs", "flow", "compute", "cost", "memory", "scheduling"},
    "cluster": {"foundation", "specs", "flow", "cost", "runtime"},
    "results": {"foundation", "flow"},
    "studies": {"foundation", "specs", "flow", "workload", "compute", "cost", "memory", "scheduling", "runtime",
                "cluster", "results", "calibration"},
    "testing": {"foundation", "specs", "flow", "memory", "scheduling", "studies"},
    "cli": {"foundation", "specs", "flow", "workload", "results", "studies", "calibration", "testing"},
}

#: The only packages that may import each third-party library.
FENCES: dict[str, set[str]] = {
    "simpy": {"runtime", "cluster", "studies"},
    "networkx": {"cost"},
    "matplotlib": {"results"},
    "pyarrow": {"workload", "results", "calibration"},
    "sklearn": {"calibration"},
    "scipy": {"calibration"},
    "torch": {"calibration"},
    "vllm": {"calibration"},
    "cattrs": {"foundation"},
    "tomli_w": {"studies", "testing"},
    "hypothesis": {"testing"},
    "typer": {"cli"},
    "rich": {"cli", "results"},
}

#: What layers are written in: docs/einsum.md.
_NOTATION = {"op": "ksim.compute.notation.product", "attend": "ksim.compute.notation.attention",
             "pointwise": "ksim.compute.notation.pointwise", "communicate": "ksim.compute.notation.communicate",
             "ring": "ksim.compute.notation.context", "ulysses": "ksim.compute.notation.context"}


def __getattr__(name: str) -> Any:
    """Load the public names when they are asked for, so that ``import ksim`` stays cheap."""
    home = {"Scenario": "ksim.studies.scenario", "simulate": "ksim.studies.simulation", "Result": "ksim.results.result",
            "KsimError": "ksim.foundation.errors", "Layer": "ksim.studies.layer",
            "PowerSettings": "ksim.specs.power", **_NOTATION}.get(name)
    if home is None:
        raise AttributeError(f"module 'ksim' has no attribute {name!r}")
    return getattr(import_module(home), name)

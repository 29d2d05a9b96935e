"""Simulate LLM inference serving, kernel by kernel.

A run in Python:

    from ksim import Scenario, simulate

    scenario = Scenario.read("scenario.toml")            # or Scenario.of({...}); docs/scenario.md has every key
    result = simulate(scenario.with_values({"serve.max_num_seqs": 64}))
    print(result.report())                               # result.summary, .requests, .steps, .kernels, .save(folder)

A layer of your own, priced kernel by kernel (docs/einsum.md):

    from ksim import Layer, op

    print(Layer([op("bsm,mF->bsF")], {"b": 8, "s": 1, "m": 4096, "F": 14336}).on("h200"))

Every error that a user can cause is a KsimError.  `ksim --help` shows the command line.

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in `_HOMES`, for editors and type checkers
    from ksim.compute.notation.attention import attend
    from ksim.compute.notation.communicate import communicate
    from ksim.compute.notation.context import ring, ulysses
    from ksim.compute.notation.pointwise import pointwise
    from ksim.compute.notation.product import op
    from ksim.foundation.errors import KsimError
    from ksim.report.result import Result
    from ksim.simulation.layer import Layer
    from ksim.simulation.scenario import Scenario
    from ksim.simulation.simulate import simulate
    from ksim.specs.power import PowerSettings

__version__ = "0.1.0"

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
    "PIL": {"results"},
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

#: Where the public names are defined.
_HOMES = {
    "Scenario": "ksim.simulation.scenario", "simulate": "ksim.simulation.simulate", "Result": "ksim.report.result",
    "KsimError": "ksim.foundation.errors", "PowerSettings": "ksim.specs.power",
    # What layers are written in: docs/einsum.md.
    "Layer": "ksim.simulation.layer", "op": "ksim.compute.notation.product", "attend": "ksim.compute.notation.attention",
    "pointwise": "ksim.compute.notation.pointwise", "communicate": "ksim.compute.notation.communicate",
    "ring": "ksim.compute.notation.context", "ulysses": "ksim.compute.notation.context",
}

if not TYPE_CHECKING:  # a type checker that saw this would take any name for one of ours
    def __getattr__(name: str) -> Any:
        """Load the public names when they are asked for, so that ``import ksim`` stays cheap."""
        if name not in _HOMES:
            raise AttributeError(f"module 'ksim' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "import_module"})

"""Simulate LLM inference serving, kernel by kernel.

A run in Python:

    from ksim import Scenario, simulate

    scenario = Scenario.read("scenario.toml")            # or Scenario.of({...}); docs/scenario.md has every key
    result = simulate(scenario.with_values({"serve.max_num_seqs": 64}))
    print(result.report())                               # result.summary, .requests, .steps, .kernels, .save(folder)

How many GPUs a load needs, or how much load a set-up carries (docs/capacity.md):

    ksim.capacity("scenario.toml", slo=["ttft:p99:1s"], rate=10, over={"gpu": ["h100", "h200"]})

A layer of your own, priced kernel by kernel (docs/einsum.md):

    from ksim import Layer, op

    print(Layer([op("bsm,mF->bsF")], {"b": 8, "s": 1, "m": 4096, "F": 14336}).on("h200"))

Every error that a user can cause is a KsimError.  `ksim --help` shows the command line.

Data flows one way, and each package answers one question about it:

    specs       what is simulated?          workload    what arrives?
    compute     what must be computed?      oracles     how long does a kernel take?
    network     how long does a message?    cost        how long a step, how much energy?
    kv_cache    what stays cached?          scheduling  what runs next?
    kv_transfer how does KV move?           kv_offload  what stays below the GPU?
    engine      what happens when?          cluster     where does it happen?
    results     how good was it?            report      how is it shown?
    simulation  how does a scenario run?    study       what do many runs answer?
    page        how does it look in a browser?
    server      how does it answer a client? deploy      how do users run it?
    validation  how close is it to reality? calibration what do measurements teach?

`foundation` and `flow` (the values that travel) lie under all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in `_HOMES`, for editors and type checkers
    from ksim.compute.notation.attention import attend, ring, ulysses
    from ksim.compute.notation.communicate import communicate
    from ksim.compute.notation.pointwise import pointwise
    from ksim.compute.notation.product import op
    from ksim.foundation.errors import KsimError
    from ksim.report.result import Result
    from ksim.simulation.layer import Layer
    from ksim.simulation.scenario import Scenario
    from ksim.simulation.simulate import simulate
    from ksim.specs.power import PowerSettings
    from ksim.study.capacity.ask import capacity
    from ksim.study.routers.compare import routers
    from ksim.study.sweep import sweep
    from ksim.study.tuning.tune import tune

__version__ = "0.2.0"

__all__ = ["FENCES", "LAYERS", "KsimError", "Layer", "PowerSettings", "Result", "Scenario", "attend", "capacity",
           "communicate", "op", "pointwise", "ring", "routers", "simulate", "sweep", "tune", "ulysses"]

#: Which packages each package may import.  `tests/test_architecture.py` enforces it.
LAYERS: dict[str, set[str]] = {
    "foundation": set(),
    "specs": {"foundation"},
    "flow": {"foundation"},
    "workload": {"foundation", "flow"},
    "compute": {"foundation", "specs.shard", "flow"},
    "oracles": {"foundation", "specs", "flow", "compute"},
    "network": {"foundation", "specs", "compute"},
    "cost": {"foundation", "specs", "flow", "compute", "oracles", "network"},
    "calibration": {"foundation", "specs", "flow", "compute", "oracles", "network", "cost"},
    "kv_cache": {"foundation", "flow"},
    "scheduling": {"foundation", "flow", "kv_cache"},
    "kv_transfer": {"foundation", "specs", "flow", "network", "kv_cache", "scheduling"},
    "kv_offload": {"foundation", "specs", "flow", "network", "kv_cache", "scheduling", "kv_transfer"},
    "engine": {"foundation", "specs", "flow", "compute", "network", "cost", "kv_cache", "scheduling", "kv_transfer",
               "kv_offload"},
    "cluster": {"foundation", "specs", "flow", "cost", "kv_transfer", "engine"},
    "results": {"foundation", "flow"},
    "report": {"foundation", "flow", "results"},
    "simulation": {"foundation", "specs", "flow", "workload", "compute", "oracles", "network", "cost", "kv_cache",
                   "scheduling", "kv_transfer", "kv_offload", "engine", "cluster", "results", "report", "calibration"},
    "validation": {"foundation", "specs", "flow", "workload", "compute", "oracles", "network", "cost", "kv_cache",
                   "scheduling", "kv_transfer", "kv_offload", "engine", "results", "report", "calibration",
                   "simulation"},
    "testing": {"foundation", "specs", "flow", "kv_cache", "scheduling", "simulation"},
    "study": {"foundation", "specs", "flow", "workload", "compute", "cost", "oracles", "engine", "results", "report",
              "simulation"},
    "page": {"foundation", "flow", "results", "report", "simulation", "study"},
    "server": {"foundation", "specs", "flow", "workload", "scheduling", "kv_cache", "engine", "cluster", "results",
               "report", "simulation"},
    "deploy": {"foundation", "specs", "flow", "workload", "cluster", "simulation", "study"},
    "cli": {"foundation", "specs", "flow", "workload", "results", "report", "simulation", "validation", "calibration",
            "testing", "study", "page", "deploy", "server"},
}

#: The only packages that may import each third-party library.
FENCES: dict[str, set[str]] = {
    "simpy": {"network", "kv_transfer", "kv_offload", "engine", "cluster", "simulation"},
    "networkx": {"network"},
    "matplotlib": {"report"},
    "PIL": {"report"},
    "pyarrow": {"foundation", "workload", "results", "report", "calibration", "study", "page"},
    "plotly": {"page"},
    "optuna": {"study"},
    "ray": {"study"},
    "sklearn": {"calibration"},
    "scipy": {"calibration"},
    "torch": {"calibration"},
    "vllm": {"calibration"},
    "cattrs": {"foundation"},
    "yaml": {"cluster", "deploy", "validation"},
    "tomli_w": {"simulation", "testing", "study", "deploy"},
    "hypothesis": {"testing"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "zmq": {"server"},
    "msgspec": {"server"},
    "tokenizers": {"server", "workload"},
    "jinja2": {"server"},
    "typer": {"cli"},
    "rich": {"cli", "report", "study"},
}

#: Where the public names are defined.
_HOMES = {
    "Scenario": "ksim.simulation.scenario", "simulate": "ksim.simulation.simulate", "Result": "ksim.report.result",
    "sweep": "ksim.study.sweep", "tune": "ksim.study.tuning.tune",
    "KsimError": "ksim.foundation.errors", "PowerSettings": "ksim.specs.power",
    "capacity": "ksim.study.capacity.ask", "routers": "ksim.study.routers.compare",
    # What layers are written in: docs/einsum.md.
    "Layer": "ksim.simulation.layer", "op": "ksim.compute.notation.product",
    "attend": "ksim.compute.notation.attention", "pointwise": "ksim.compute.notation.pointwise",
    "communicate": "ksim.compute.notation.communicate",
    "ring": "ksim.compute.notation.attention", "ulysses": "ksim.compute.notation.attention",
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

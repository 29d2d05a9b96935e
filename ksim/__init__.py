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
    kv          what stays cached?          scheduling  what runs next?
    engine      what happens when?          cluster     where does it happen?
    results     how good was it?            report      how is it shown?
    scenario    what is asked for?          simulation  how does it run?
    study       what do many runs answer?   page        how does it look in a browser?
    server      how does it answer a client? deploy     how do users run it?
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
    from ksim.scenario.layer import Layer
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.simulate import simulate
    from ksim.specs.power import PowerSettings
    from ksim.study.capacity.ask import capacity
    from ksim.study.routers.compare import routers
    from ksim.study.sweep import sweep
    from ksim.study.tuning.tune import tune

__version__ = "0.2.0"

__all__ = ["FENCES", "LAYERS", "ROOMS", "KsimError", "Layer", "PowerSettings", "Result", "Scenario", "attend",
           "capacity", "communicate", "op", "pointwise", "ring", "routers", "simulate", "sweep", "tune", "ulysses"]

#: Which rooms each room may import: packages, and those within `kv`.  `tests/test_architecture.py` enforces it.
LAYERS: dict[str, set[str]] = {
    "foundation": set(),
    "specs": {"foundation"},
    "flow": set(),
    "workload": {"foundation", "flow"},
    "compute": {"foundation", "specs.shard", "flow"},
    "oracles": {"foundation", "specs", "flow", "compute"},
    "network": {"foundation", "specs", "compute"},
    "cost": {"foundation", "specs", "flow", "compute", "oracles", "network"},
    "calibration": {"foundation", "specs", "flow", "compute", "oracles", "cost"},
    "kv.cache": {"foundation", "flow"},
    "scheduling": {"foundation", "flow", "kv.cache"},
    "kv.transfer": {"foundation", "flow", "network", "scheduling"},
    "kv.offload": {"foundation", "flow", "network", "kv.cache", "scheduling", "kv.transfer"},
    "engine": {"foundation", "specs", "flow", "compute", "network", "cost", "scheduling", "kv.transfer"},
    "cluster": {"foundation", "specs", "flow", "kv.transfer", "engine"},
    "results": {"foundation", "flow"},
    "report": {"foundation", "flow", "results"},
    "scenario": {"foundation", "specs", "flow", "workload", "compute", "oracles", "network", "cost", "calibration",
                 "kv.cache", "scheduling", "engine", "cluster", "results", "report"},
    "simulation": {"foundation", "specs", "flow", "workload", "compute", "oracles", "network", "cost", "kv.cache",
                   "scheduling", "kv.transfer", "kv.offload", "engine", "cluster", "results", "report", "scenario"},
    "validation": {"foundation", "specs", "flow", "workload", "oracles", "network", "cost", "calibration", "kv.cache",
                   "scheduling", "kv.offload", "engine", "results", "report", "scenario", "simulation"},
    "testing": {"foundation", "specs", "flow", "kv.cache", "scheduling", "scenario"},
    "study": {"foundation", "specs", "flow", "workload", "cost", "engine", "results", "report", "scenario",
              "simulation"},
    "page": {"foundation", "flow", "results", "report", "scenario", "study"},
    "server": {"foundation", "flow", "workload", "scheduling", "engine", "cluster", "results", "scenario",
               "simulation"},
    "deploy": {"foundation", "specs", "cluster", "scenario", "simulation"},
    "cli": {"foundation", "specs", "flow", "workload", "calibration", "results", "report", "scenario", "simulation",
            "validation", "testing", "study", "page", "server", "deploy"},
}

#: The size of each room: its modules, its lines, in hundreds that have begun, and its doors, which are the modules that
#: other rooms import.  A change that makes a room larger or smaller changes its row.
ROOMS: dict[str, tuple[int, int, int]] = {
    "kv": (1, 100, 0), "foundation": (9, 1_800, 8), "specs": (11, 1_600, 9), "flow": (10, 2_000, 9),
    "workload": (29, 4_600, 12), "compute": (56, 8_100, 24), "oracles": (21, 3_900, 12), "network": (13, 1_700, 6),
    "cost": (10, 2_100, 6), "calibration": (34, 4_800, 18), "kv.cache": (10, 2_500, 9),
    "scheduling": (29, 4_000, 17), "kv.transfer": (8, 1_000, 6), "kv.offload": (19, 3_300, 10),
    "engine": (14, 3_000, 12), "cluster": (39, 5_200, 9), "results": (23, 4_700, 19), "report": (23, 4_700, 13),
    "scenario": (19, 4_200, 14), "simulation": (10, 1_800, 7), "validation": (24, 4_600, 11),
    "testing": (18, 2_400, 2), "study": (29, 6_400, 16), "page": (13, 2_600, 1), "server": (23, 5_100, 4),
    "deploy": (35, 7_400, 4), "cli": (28, 6_100, 0),
}

#: The only rooms that may import each third-party library.
FENCES: dict[str, set[str]] = {
    "simpy": {"network", "kv.transfer", "kv.offload", "engine", "cluster", "simulation"},
    "networkx": {"network"},
    "matplotlib": {"report"},
    "PIL": {"report"},
    "pyarrow": {"foundation", "calibration", "results", "report", "study", "page"},
    "plotly": {"page"},
    "optuna": {"study"},
    "ray": {"study"},
    "sklearn": {"calibration"},
    "scipy": {"calibration"},
    "torch": {"calibration"},
    "vllm": {"calibration"},
    "cattrs": {"foundation"},
    "yaml": {"cluster", "validation", "deploy"},
    "tomli_w": {"scenario", "testing", "study", "deploy"},
    "hypothesis": {"testing"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "zmq": {"server"},
    "msgspec": {"server"},
    "tokenizers": {"workload", "server"},
    "jinja2": {"server"},
    "typer": {"cli"},
    "rich": {"report", "cli"},
}

#: Where the public names are defined.
_HOMES = {
    "Scenario": "ksim.scenario.scenario", "simulate": "ksim.simulation.simulate", "Result": "ksim.report.result",
    "sweep": "ksim.study.sweep", "tune": "ksim.study.tuning.tune",
    "KsimError": "ksim.foundation.errors", "PowerSettings": "ksim.specs.power",
    "capacity": "ksim.study.capacity.ask", "routers": "ksim.study.routers.compare",
    # What layers are written in: docs/einsum.md.
    "Layer": "ksim.scenario.layer", "op": "ksim.compute.notation.product",
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

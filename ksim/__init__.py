"""Simulate LLM inference serving, kernel by kernel.

A run in Python:

    from ksim import Scenario, simulate

    scenario = Scenario.read("scenario.toml")            # or Scenario.of({...}); docs/scenario.md has every key
    result = simulate(scenario.with_values({"serve.max_num_seqs": 64}))
    print(result.report())                               # result.summary, .requests, .steps, .kernels, .save(folder)

How many GPUs a load needs, or how much load a set-up carries (docs/capacity.md):

    ksim.capacity("scenario.toml", slo=["ttft:p99:1s"], rate=10, over={"gpu": ["h100", "h200"]})

The cheapest deployment of hundreds (docs/plan.md):

    ksim.plan("scenario.toml", rate=20, slo=["ttft:p99:1s"], gpus=["h100=2.5", "h200=3.5"])

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
    autoscaling how many engines?
    results     how good was it?            views       how is it shown?
    scenario    what is asked for?          simulation  how does it run?
    features    what may it have besides?   study       what do many runs answer?
    deploy      how do users run it?        server      how does it answer a client?
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
    from ksim.scenario.layer import Layer
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.simulate import simulate
    from ksim.specs.hardware import PowerSettings
    from ksim.study.autoscalers import autoscalers
    from ksim.study.capacity.ask import capacity
    from ksim.study.planning.ask import plan
    from ksim.study.routers import routers
    from ksim.study.sweep import sweep
    from ksim.study.tuning.tune import tune
    from ksim.views.result import Result

__version__ = "0.2.0"

__all__ = ["FENCES", "LAYERS", "ROOMS", "KsimError", "Layer", "PowerSettings", "Result", "Scenario", "attend",
           "autoscalers", "capacity", "communicate", "op", "plan", "pointwise", "ring", "routers", "simulate", "sweep",
           "tune", "ulysses"]

#: Which rooms each room may import: packages, and those within `kv` and `views`.
LAYERS: dict[str, set[str]] = {
    "foundation": set(),
    "specs": {"foundation"},
    "flow": set(),
    "workload": {"foundation", "specs", "flow"},
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
    "cluster": {"autoscaling", "foundation", "specs", "flow", "kv.transfer", "engine"},
    "autoscaling": {"foundation", "specs"},
    "results": {"foundation", "flow"},
    "views": {"foundation", "flow", "results"},
    "scenario": {"foundation", "specs", "flow", "workload", "compute", "oracles", "network", "cost", "calibration",
                 "kv.cache", "scheduling", "engine", "results", "views"},
    "simulation": {"foundation", "specs", "flow", "workload", "oracles", "network", "cost", "kv.cache", "scheduling",
                   "kv.transfer", "engine", "cluster", "results", "views", "scenario"},
    "features": {"foundation", "specs", "flow", "workload", "compute", "network", "cost", "kv.cache", "scheduling",
                 "kv.transfer", "kv.offload", "engine", "cluster", "autoscaling", "scenario", "simulation"},
    "validation": {"foundation", "specs", "autoscaling", "flow", "workload", "kv.cache", "scheduling", "kv.offload",
                   "results", "views", "scenario", "simulation"},
    "testing": {"foundation", "specs", "flow", "kv.cache", "scheduling", "scenario"},
    "study": {"foundation", "specs", "flow", "workload", "cost", "engine", "results", "views", "scenario",
              "simulation"},
    "views.page": {"foundation", "flow", "results", "views", "scenario", "study"},
    "server": {"foundation", "flow", "workload", "scheduling", "engine", "cluster", "results", "scenario",
               "simulation", "features"},
    "deploy": {"autoscaling", "foundation", "specs", "cluster", "scenario", "simulation", "features"},
    "cli": {"foundation", "specs", "flow", "workload", "calibration", "results", "views", "scenario", "simulation",
            "features", "validation", "testing", "study", "views.page", "server", "deploy"},
}

#: The size of each room: its modules, its lines, in hundreds that have begun, and its doors, which are the modules that
#: other rooms import.  A change that makes a room larger or smaller changes its row.
ROOMS: dict[str, tuple[int, int, int]] = {
    "kv": (1, 100, 0), "foundation": (9, 1_800, 8), "specs": (9, 2_400, 8), "flow": (7, 2_200, 6),
    "workload": (27, 5_100, 7), "compute": (50, 8_500, 18), "oracles": (21, 4_100, 6), "network": (9, 1_800, 5),
    "cost": (13, 3_400, 7), "calibration": (30, 4_600, 4), "kv.cache": (10, 3_200, 9), "scheduling": (36, 6_300, 21),
    "kv.transfer": (6, 1_100, 4), "kv.offload": (19, 3_400, 4), "engine": (19, 4_300, 15), "cluster": (42, 6_000, 9),
    "autoscaling": (18, 3_800, 13),
    "features": (15, 2_700, 2), "results": (19, 6_100, 12), "views": (20, 5_300, 13), "scenario": (20, 4_800, 16),
    "simulation": (7, 1_600, 6), "validation": (26, 4_700, 6), "testing": (19, 2_700, 2), "study": (44, 9_800, 14),
    "views.page": (17, 2_500, 1), "server": (27, 6_200, 4), "deploy": (37, 8_000, 6), "cli": (29, 6_600, 0),
}

#: The only rooms that may import each third-party library.
FENCES: dict[str, set[str]] = {
    "simpy": {"network", "kv.transfer", "kv.offload", "engine", "cluster", "simulation"},
    "networkx": {"network"},
    "matplotlib": {"views"},
    "PIL": {"views"},
    "pyarrow": {"foundation", "calibration", "results", "views", "study", "views.page"},
    "plotly": {"views.page"},
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
    "prometheus_client": {"server"},
    "tokenizers": {"workload", "server"},
    "jinja2": {"server"},
    "typer": {"cli"},
    "rich": {"views", "cli"},
}

#: Where the public names are defined.
_HOMES = {
    "Scenario": "ksim.scenario.scenario", "simulate": "ksim.simulation.simulate", "Result": "ksim.views.result",
    "sweep": "ksim.study.sweep", "tune": "ksim.study.tuning.tune",
    "KsimError": "ksim.foundation.errors", "PowerSettings": "ksim.specs.hardware",
    "autoscalers": "ksim.study.autoscalers", "capacity": "ksim.study.capacity.ask",
    "plan": "ksim.study.planning.ask", "routers": "ksim.study.routers",
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

"""Whether a result and a scenario are of the same deployment, as far as the result says."""

import re
from pathlib import Path

from ksim.foundation.errors import KsimError
from ksim.simulation.model_names import named
from ksim.simulation.scenario import Scenario
from ksim.validation.benchmarks.recorded import Recorded

_NOISE = re.compile(r"meta-|instruct|chat|-it$|-hf$|-bf16$|[^a-z0-9.]")


def mismatches(run: Recorded, scenario: Scenario) -> list[str]:
    """Remarks on what the result names otherwise than the scenario: its model, GPUs and tensor parallelism."""
    remarks = []
    model = str(run.facts.get("model") or "")
    ours = Path(scenario.model).parent.name if scenario.model.endswith(".json") else scenario.model
    if model and _plain(model) != _plain(ours):
        remarks.append(f"the result is of the model {model!r}, the scenario of {scenario.model!r}")
    tp, own = run.facts.get("tp"), scenario.serve.tensor_parallel_size or 1
    if tp and not scenario.pools and str(tp) != str(own):
        remarks.append(f"the result is of tensor parallelism {tp}, the scenario of {own}")
    gpu = str(run.facts.get("gpu") or "").lower().split("-")[0]
    if gpu and scenario.gpu and not str(scenario.gpu).lower().startswith(gpu):
        remarks.append(f"the result is of the GPU {run.facts['gpu']!r}, the scenario of {str(scenario.gpu)!r}")
    return remarks


def _plain(name: str) -> str:
    """The catalogue's name of a model, or what is left of one that the catalogue lacks."""
    try:
        return named(name, "the result").name
    except KsimError:
        return _NOISE.sub("", name.rstrip("/").rpartition("/")[2].lower())

"""What was run, in one line: model, GPUs, parallelism and load."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ksim.flow.events import EngineBuilt
from ksim.report.wording import number

#: Longer model names are cut at the front, which is usually folders.
_LONGEST = 40


def subject(labels: Mapping[str, Any], engines: Sequence[EngineBuilt], rate: float | None = None) -> str:
    """Such as "llama-3.1-8b on 8 x H200, TP 2, DP 4, 6.73 requests/s offered"."""
    said = [f"{model_name(labels)} on {hardware(labels, engines)}", *parallelism(engines)]
    return ", ".join([*said, f"{number(rate)} requests/s offered"] if rate is not None else said)


def model_name(labels: Mapping[str, Any]) -> str:
    """The label `model_id`; for the path of a config.json, the name of its folder."""
    path = PurePath(str(labels.get("model_id", "a model")))
    name = path.parent.name if path.name == "config.json" and path.parent.name else str(path)
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST:]}"


def hardware(labels: Mapping[str, Any], engines: Sequence[EngineBuilt]) -> str:
    """The number and the kind of GPUs."""
    gpu = labels.get("gpu") or ", ".join(dict.fromkeys(built.gpu for built in engines)) or "GPU"
    return f"{sum(built.ranks * built.stages for built in engines)} x {gpu}"


def parallelism(engines: Sequence[EngineBuilt]) -> list[str]:
    """The degrees of tensor, pipeline and data parallelism; the latter two only above 1."""
    if not engines:
        return []
    ranks, stages = max(built.ranks for built in engines), max(built.stages for built in engines)
    sizes = (("PP", stages), ("DP", len(engines)))
    return [f"TP {ranks}", *(f"{name} {size}" for name, size in sizes if size > 1)]

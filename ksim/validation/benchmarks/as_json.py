"""The comparison of benchmarks for JSON: latencies in milliseconds, and None for what is not known."""

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
from attrs import asdict

from ksim.validation.benchmarks.comparison import Compared, Part
from ksim.validation.benchmarks.recorded import RATES
from ksim.validation.benchmarks.trends import trends

#: The figures whose errors sum up a comparison.
HEADLINES = {"ttft": "ttft_p50", "tpot": "tpot_p50", "throughput": "output_throughput"}


def as_json(compared: Sequence[Compared]) -> dict[str, Any]:
    """The runs, and the medians over them of absolute errors in per cent."""
    return {**{f"{name}_median_ape": _known(median_ape(compared, figure)) for name, figure in HEADLINES.items()},
            "trends": list(trends(compared)), "runs": [_run(one) for one in compared]}


def median_ape(compared: Sequence[Compared], figure: str) -> float:
    """The median over runs of the absolute error of *figure*; the mean latency stands in where a median is missing."""
    others = (figure, figure.replace("_p50", "_mean"))
    errors = [abs(one.error(next((name for name in others if name in one.figures), figure))) for one in compared]
    known = [error for error in errors if not isnan(error)]
    return float(np.median(known)) if known else float("nan")


def _run(one: Compared) -> dict[str, Any]:
    run = one.recorded
    return {
        "result": str(run.path), "run": run.name, "client": run.tool, "requests": run.count, "failed": run.failed,
        "incomplete": run.incomplete,
        "load": {key: value for key, value in asdict(run.load).items() if key != "burstiness" or run.load.rate},
        "facts": dict(run.facts), "simulated": one.how,
        "measured": {_key(name): _scaled(name, pair[0]) for name, pair in one.figures.items()},
        "predicted": {_key(name): _scaled(name, pair[1]) for name, pair in one.figures.items()},
        "error_percent": {_key(name): _known(one.error(name)) for name in one.figures},
        "by_load": [_part(part) for part in one.by_load], "by_prompt": [_part(part) for part in one.by_prompt],
        "causes": [{"cause": cause.name, "metric": cause.metric, "ms": 1e3 * cause.seconds, "evidence": cause.evidence}
                   for cause in one.causes],
        "remarks": list(one.remarks)}


def _key(name: str) -> str:
    return name if name in RATES else f"{name}_ms"


def _scaled(name: str, value: float) -> float | None:
    return _known(value if name in RATES else 1e3 * value)


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _part(part: Part) -> dict[str, Any]:
    return {"what": part.what, "requests": part.requests,
            **{f"{side}_{name}_ms": _known(1e3 * value) for name, pair in (("ttft", part.ttft), ("tpot", part.tpot))
               for side, value in zip(("measured", "predicted"), pair, strict=True)}}

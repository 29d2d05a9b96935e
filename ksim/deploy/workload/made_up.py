"""The workload that stands for traffic of which nothing is known, and the note that says so."""

from collections.abc import Mapping
from typing import Any

from ksim.deploy.launches import Note

#: What stands for traffic of which nothing is known.
MADE_UP: Mapping[str, Any] = {
    "count": 200,
    "arrivals": {"process": "poisson", "rate": 4.0},
    "prompt": {"kind": "lognormal", "median": 600, "sigma": 0.9},
    "output": {"kind": "lognormal", "median": 150, "sigma": 0.8},
    "max_tokens": 8192,
}
_WHY = ("MADE UP: a launch line says nothing of the traffic; put your own in its place, such as a trace"
        " ([workload.replay]), or give the client's line with --bench")


def made_up(most: int | None) -> tuple[dict[str, Any], Note]:
    """A workload whose requests have at most *most* tokens, and the note that nobody said so."""
    load = {**MADE_UP, "max_tokens": min(MADE_UP["max_tokens"], most or MADE_UP["max_tokens"])}
    return {"workload": {"synthetic": load}}, Note("", "workload", _WHY)

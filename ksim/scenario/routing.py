"""How popular the experts of a mixture are: what a scenario's `routing` names.

`uniform` makes all experts alike.  `zipf` takes an `exponent`.  `measured` takes a `path`, of a JSON list or a CSV file
with each expert's share of the pairs of tokens and experts, in one row for all layers or in a row for each layer.
Rows need not add up to 1.  `ksim routing` makes such a file of what engines returned (`ksim.scenario.routed`).

Where experts are drawn step by step, popularity may move around that: its natural logarithm has a standard `deviation`,
and correlations from step to step and from layer to layer (`ksim.specs.shard.Routing`).
"""

import json
from pathlib import Path
from typing import Any

from ksim.compute.model import Model
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.foundation.files import LONGEST, regular_file
from ksim.specs.shard import Routing

__all__ = ["routing_of", "table_rows"]


#: The options of each kind of routing that are required, and the largest values of those that any kind may have.
OPTIONS = {"uniform": (), "zipf": ("exponent",), "measured": ("path",)}
MOVING = {"deviation": 5.0, "step_correlation": 1.0, "layer_correlation": 1.0}


def routing_of(choice: Choice, model: Model) -> Routing:
    """The routing that *choice* names for *model*; raises UnknownName, ConfigError or DataError."""
    if choice.name not in OPTIONS:
        raise UnknownName("routing", choice.name, list(OPTIONS))
    moving = {key: _number(key, choice.options[key], most) for key, most in MOVING.items() if key in choice.options}
    own = {key: value for key, value in choice.options.items() if key not in MOVING}
    if sorted(own) != sorted(OPTIONS[choice.name]):
        needed = " and ".join(OPTIONS[choice.name]) or "nothing"
        raise ConfigError("routing", f"{choice.name!r} takes {needed}, and was given {', '.join(own) or 'nothing'};"
                                     f" any may have {', '.join(MOVING)}")
    if moving.get("step_correlation") and not moving.get("deviation"):
        raise ConfigError("routing.step_correlation", "is of popularity that moves; set deviation, or leave it out")
    if choice.name == "measured":
        routing = _measured(Path(str(own["path"])), model)
    else:
        routing = Routing(_number("exponent", own.get("exponent", 0.0)))
    return Routing(routing.exponent, routing.shares, **moving)


def _number(key: str, value: Any, most: float = float("inf")) -> float:
    """*value* from 0 to *most*; raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or value == float("inf"):
        within = "of 0 or more" if most == float("inf") else f"from 0 to {most:g}"
        raise ConfigError(f"routing.{key}", f"expected a number {within}, not {value!r}")
    return float(value)


def _measured(path: Path, model: Model) -> Routing:
    rows = table_rows(path)
    experts = model.decoder.sizes.get("E", 0)
    if not experts:
        raise ConfigError("routing", f"{model.name} has no experts; leave it out")
    if len(rows) not in (1, model.layers) or {len(row) for row in rows} != {experts}:
        raise DataError(str(path), f"has {len(rows)} rows of {'/'.join(sorted({str(len(row)) for row in rows}))}"
                                   f" shares; {model.name} needs 1 row or {model.layers}, of {experts} each")
    try:
        return Routing(shares=tuple(tuple(row) for row in rows))
    except ValueError as error:
        raise DataError(str(path), str(error)) from None


def table_rows(path: Path) -> list[list[float]]:
    """The numbers in a JSON or CSV file, row by row; raises DataError for what is no table of numbers."""
    try:
        text = regular_file(path, LONGEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(str(path), f"cannot be read: {error}") from None
    try:
        table: Any = json.loads(text) if path.suffix == ".json" else [
            line.split(",") for line in text.splitlines() if line.strip()]
        rows = table if isinstance(table[0], list) else [table]
        return [[float(share) for share in row] for row in rows]
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise DataError(str(path), f"is no table of numbers, a row of shares for all layers or one for each:"
                                   f" {error}") from None



"""How popular the experts of a mixture are: what a scenario's `routing` names.

`uniform` makes all experts alike.  `zipf` takes an `exponent`.  `measured` takes a `path`, of a JSON list or a CSV file
with each expert's share of the pairs of tokens and experts, in one row for all layers or in a row for each layer.
Rows need not add up to 1.
"""

import json
from pathlib import Path
from typing import Any

from ksim.compute.model import Model
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.foundation.files import LONGEST, regular_file
from ksim.specs.shard import Routing

__all__ = ["routing_of"]


#: The options of each kind of routing, all of them required.
OPTIONS = {"uniform": (), "zipf": ("exponent",), "measured": ("path",)}


def routing_of(choice: Choice, model: Model) -> Routing:
    """The routing that *choice* names for *model*; raises UnknownName, ConfigError or DataError."""
    if choice.name not in OPTIONS:
        raise UnknownName("routing", choice.name, list(OPTIONS))
    if sorted(choice.options) != sorted(OPTIONS[choice.name]):
        needed = " and ".join(OPTIONS[choice.name]) or "nothing"
        raise ConfigError("routing", f"{choice.name!r} takes {needed}, and was given"
                                     f" {', '.join(choice.options) or 'nothing'}")
    if choice.name == "measured":
        return _measured(Path(str(choice.options["path"])), model)
    exponent = choice.options.get("exponent", 0.0)
    if isinstance(exponent, bool) or not isinstance(exponent, int | float) or not 0 <= exponent < float("inf"):
        raise ConfigError("routing.exponent", f"expected a number of 0 or more, not {exponent!r}")
    return Routing(float(exponent))


def _measured(path: Path, model: Model) -> Routing:
    rows = _rows(path)
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


def _rows(path: Path) -> list[list[float]]:
    """The numbers in a file, row by row."""
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



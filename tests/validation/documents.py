"""Documents of cases with one value changed, to see what becomes of it."""

import json
from collections.abc import Mapping
from typing import Any


def changed(document: Mapping[str, Any], path: str, value: Any) -> Any:
    """A copy of *document* with another value at a dotted path; None takes the key away."""
    copy = json.loads(json.dumps(document))
    *parents, key = [int(part) if part.isdecimal() else part for part in path.split(".")]
    table = copy
    for parent in parents:
        table = table[parent]
    if value is None:
        del table[key]
    else:
        table[key] = value
    return copy

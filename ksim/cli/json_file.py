"""What `ksim validate` writes where `--json FILE` asks for it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError


def write_outcome(path: Path | None, outcome: Mapping[str, Any], *, allow_nan: bool = True) -> None:
    """Write *outcome* where a path is given; raises ConfigError where that cannot be."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(outcome, indent=2, allow_nan=allow_nan) + "\n")
    except OSError as error:
        raise ConfigError("--json", f"{path}: {error.strerror}") from None

"""Where files go that are the user's, and of no run."""

import os
from collections.abc import Mapping
from pathlib import Path

#: The variable that names the folder, and its value where nothing is to be kept.
VARIABLE, OFF = "KSIM_CACHE_DIR", "off"


def cache(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of what could be worked out again; None where nothing is to be kept, or nobody has a home for it.

    That is $KSIM_CACHE_DIR, else ksim in $XDG_CACHE_HOME, else ~/.cache/ksim; None for KSIM_CACHE_DIR=off.
    """
    own, shared = environment.get(VARIABLE, ""), environment.get("XDG_CACHE_HOME", "")
    if own == OFF:
        return None
    if own:
        return Path(own).expanduser()
    if Path(shared).is_absolute():  # as the XDG specification has it
        return Path(shared) / "ksim"
    try:
        return Path.home() / ".cache" / "ksim"
    except RuntimeError:
        return None

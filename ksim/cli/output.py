"""Where the command line writes: tables on the screen, and JSON files."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ksim.foundation.errors import ConfigError

#: The columns of a file or pipe, which has no width of its own.
WIDTH = 216


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for our tables where there is no terminal."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def table(*columns: str, title: str = "") -> Table:
    """A table without rows; a column whose name begins with ">" holds numbers."""
    made = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number, name = column.startswith(">"), column.removeprefix(">")
        # Where there is too little room, texts are cut; numbers are not.
        made.add_column(name, justify="right" if number else "left", no_wrap=True, min_width=len(name) if number else 6)
    return made


def write_json(path: Path | None, content: Mapping[str, Any], *, allow_nan: bool = False,
               make_folder: bool = False) -> None:
    """Write *content* to *path*, if one is given; raises ConfigError where that is not possible."""
    if path is None:
        return
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, allow_nan=allow_nan) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError("--json", f"{path}: cannot be written: {error.strerror or error}") from error

"""Where the command line prints."""

import sys

from rich import box
from rich.console import Console
from rich.table import Table

#: Columns of a file or pipe, which has none of its own.
WIDTH = 216


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for our tables where there is none."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def table(*columns: str, title: str = "") -> Table:
    """A table without rows yet; columns whose name begins with ">" are numbers."""
    made = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number, name = column.startswith(">"), column.removeprefix(">")
        # Texts give way where there is too little room, numbers do not.
        made.add_column(name, justify="right" if number else "left", no_wrap=True, min_width=len(name) if number else 6)
    return made

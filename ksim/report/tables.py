"""Tables of the report and of the command line, on a rich console or as plain text."""

import io
from collections.abc import Iterable, Sequence
from textwrap import dedent
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ksim.report.wording import WIDTH

#: Wide enough for any line, so that nothing is folded or cut.
_WIDEST = 400


def plain_table(**options: Any) -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", **options)


def pairs(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = plain_table()
    table.add_column(title, min_width=15, no_wrap=True)
    table.add_column("", justify="right", min_width=7, no_wrap=True)
    for label, value in rows:
        table.add_row(label, value)
    return table


def beside(*tables: Table) -> Table:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(*tables)
    return row


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], totals: Sequence[str] = ()) -> str:
    """Lines of *rows* under the names of their *columns*; columns whose names begin with ">" are numbers.

    *totals* are below a rule.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    if totals:
        table.add_section()
        table.add_row(*map(Text, totals))
    return dedent(as_text(table, _WIDEST)).strip("\n")


def as_text(renderable: RenderableType, width: int = WIDTH) -> str:
    """Render without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, force_jupyter=False,
                      legacy_windows=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO), "the console writes where it was told to"
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"

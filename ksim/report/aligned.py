"""Tables as plain text, for print()."""

from collections.abc import Sequence
from textwrap import dedent

from rich import box
from rich.table import Table
from rich.text import Text

from ksim.report.text import as_text

#: Wide enough for any line: nothing is folded or cut.
WIDTH = 400


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], totals: Sequence[str] = ()) -> str:
    """Lines of *rows* under the names of their *columns*, of which those that begin with ">" are numbers.

    *totals* go under a rule.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    if totals:
        table.add_section()
        table.add_row(*map(Text, totals))
    return dedent(as_text(table, WIDTH)).strip("\n")

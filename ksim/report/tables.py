"""The tables that the report is laid out in."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table


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

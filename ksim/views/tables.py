"""Tables as values, and their writers: for a console, as Markdown, and as HTML for a page or a notebook.

On a console, a table is laid out for a width so that nothing in it is cut.  HTML is made of elements, which escape all
that comes from files.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from html import escape
from itertools import islice
from typing import Any

from attrs import evolve, field, frozen
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ksim.results.numbers import GROUPS, Summary, group_numbers, pool_numbers
from ksim.views.wording import UNLIMITED, WIDTH, written

#: Elements without an end.
_VOID = {"input", "meta", "br", "col"}
#: After these, a line may break in a name; the dots of numbers are not among them.
_BREAKS = re.compile(r"_|(?<=[A-Za-z])\.(?=[A-Za-z])")


class Markup(str):
    """Text that is HTML already; every other text is escaped when it becomes part of an element."""

    __slots__ = ()


def element(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element with *children*, texts or markup, of which None says nothing.

    Attributes of value None or False are left out, True ones have no value, and 0 is a value as any other; `cls` is the
    class, and underscores read as hyphens.
    """
    head = "".join(_attribute(key, value) for key, value in attributes.items()
                   if value is not None and value is not False)
    if name in _VOID:
        return Markup(f"<{name}{head}>")
    return Markup(f"<{name}{head}>{together(children)}</{name}>")


def together(children: Iterable[Any]) -> Markup:
    """Markup of *children*, one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child))
                          for child in children if child is not None))


def _attribute(key: str, value: Any) -> str:
    name = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def breakable(name: str) -> Markup:
    """*name*, which a line may break after underscores and dots, and nowhere within a word."""
    return Markup(_BREAKS.sub(r"\g<0><wbr>", escape(name)))


#: Between two columns.
_GAP = 2
#: Columns of longer texts are folded at words, but not to less than this; the first column has the names of rows.
_NAME, _TEXT = 32, 12

#: Whether tables have all columns side by side, whatever the width.
WIDE: ContextVar[bool] = ContextVar("all columns", default=False)
#: What a user can do to see hidden columns, such as "--wide, --json"; "" where there is nothing to do.
REMEDY: ContextVar[str] = ContextVar("how hidden columns are shown", default="")

#: A text as it stands; a rich one has colours, too, on a console, and markup is HTML on a page.
#: A pair is what is shown, and the value by which a page sorts it.
Cell = Any


@frozen
class Column:
    """A column of numbers, which are aligned to the right and never folded, or of texts.

    Where there is no room for all columns, those with the highest `priority` are left out first, and those with 0
    never.  A column has at least `least` characters.  On a page, a `long` one is wider than others.
    """

    name: str
    number: bool = False
    priority: int = 0
    least: int = 0
    long: bool = False

    @property
    def style(self) -> str | None:
        """Its class on a page."""
        return "number" if self.number else "long" if self.long else None


@frozen
class TableRow:
    """The cells of a row, their style, and whether a section ends below it."""

    cells: tuple[Cell, ...]
    style: str = ""
    ends: bool = False


@frozen
class Layout:
    """The places of the columns that are shown with their widths, and those left out; or one below the other."""

    widths: dict[int, int]
    hidden: tuple[Column, ...] = ()
    stacked: bool = False


@frozen
class Table:
    """Rows under the names of columns; rich prints it as wide as the console is (see `laid_out`)."""

    columns: tuple[Column, ...]
    rows: list[TableRow] = field(factory=list)
    title: str = ""

    @classmethod
    def of(cls, *names: str, rows: Iterable[Sequence[Cell]] = (), title: str = "", hide: Sequence[str] = ()) -> "Table":
        """A table with columns of these *names*; those that begin with ">" hold numbers, with "~" long texts.

        Where there is no room, the columns that *hide* names are left out, the first one first.
        """
        ranks = {name.lstrip(">~"): len(hide) - index for index, name in enumerate(hide)}
        columns = (Column(name[name[:1] in (">", "~"):], name.startswith(">"), ranks.get(name.lstrip(">~"), 0),
                          long=name.startswith("~")) for name in names)
        return cls(tuple(columns), [TableRow(tuple(cells)) for cells in rows], title)

    def add_row(self, *cells: Cell, style: str = "", end_section: bool = False) -> None:
        """Add a row with a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(TableRow(cells, style, end_section))

    def add_section(self) -> None:
        """End a section below the last row."""
        if self.rows:
            self.rows[-1] = evolve(self.rows[-1], ends=True)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def width(self) -> int:
        """The characters of a line with all columns side by side, nothing folded."""
        return _line([_widths(self, index)[1] for index in range(len(self.columns))])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layout = laid_out(self, UNLIMITED if WIDE.get() else options.max_width)
        yield ""
        if self.title:
            yield Text(self.title, style="bold")
        yield from _stacked(self) if layout.stacked else [_grid(self, layout)]
        if layout.hidden:
            yield Text(hidden_line(layout.hidden, options.max_width), style="dim")
        yield ""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(self.width, options.max_width), min(self.width, options.max_width))


def laid_out(table: Table, width: int) -> Layout:
    """The layout of *table* in lines of *width* characters.

    Texts are folded at words where that is enough.  Else columns are left out by their priority; where even those that
    must stay have no room, nothing is left out, and the cells of each row stand one below the other.
    """
    places = list(range(len(table.columns)))
    least, whole = zip(*(_widths(table, index) for index in places), strict=True) if places else ((), ())
    leaving = sorted((index for index in places if table.columns[index].priority),
                     key=lambda index: (-table.columns[index].priority, -index))
    while _line([least[index] for index in places]) > width:
        if not leaving:
            return Layout({}, stacked=True)
        places.remove(leaving.pop(0))
    hidden = tuple(column for index, column in enumerate(table.columns) if index not in places)
    return Layout(_grown({index: least[index] for index in places}, {index: whole[index] for index in places}, width),
                  hidden)


def hidden_line(hidden: Sequence[Column], width: int) -> str:
    """How many columns are *hidden*, which ones if that fits into *width*, and what shows them."""
    count = f"{len(hidden)} column{'s' * (len(hidden) > 1)} hidden"
    remedy = f": {REMEDY.get()}" if REMEDY.get() else ""
    named = f"{count} ({', '.join(column.name for column in hidden if column.name)}){remedy}"
    return named if cell_len(named) <= width else f"{count}{remedy}"


def _line(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * max(0, len(widths) - 1)


def _widths(table: Table, index: int) -> tuple[int, int]:
    """The least characters of a column, where texts are folded, and those without any fold."""
    column = table.columns[index]
    cells = [line for row in table.rows for line in str(row.cells[index]).splitlines()]
    content = max(map(cell_len, cells), default=0)
    whole = max(column.least, content, cell_len(column.name), 1)
    words = [word for line in ((column.name,) if column.number else (column.name, *cells)) for word in _words(line)]
    room = content if column.number else min(whole, _TEXT if index else _NAME)
    return max(column.least, room, *map(cell_len, words), 1), whole


def _words(line: str) -> list[str]:
    """The words of *line*, the first one with the blanks before it, which stay where the line is folded."""
    words = line.split()
    return [line[:len(line) - len(line.lstrip())] + words[0], *words[1:]] if words else []


def _grown(least: dict[int, int], whole: dict[int, int], width: int) -> dict[int, int]:
    """The widths of columns that share what *width* leaves, each by what it lacks."""
    spare, lacking = width - _line([*least.values()]), sum(whole.values()) - sum(least.values())
    if lacking <= spare:
        return whole
    return {index: few + spare * (whole[index] - few) // lacking for index, few in least.items()}


def _grid(table: Table, layout: Layout) -> Grid:
    made = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold")
    for index, width in layout.widths.items():
        column = table.columns[index]
        made.add_column(Text(column.name), width=width, justify="right" if column.number else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*(_text(row.cells[index]) for index in layout.widths), style=row.style, end_section=row.ends)
    return made


def _stacked(table: Table) -> Iterator[RenderableType]:
    """The rows one below the other: the name of each, then a line for each of its other cells that says something."""
    first, *others = table.columns
    for row in table.rows:
        name, *cells = row.cells
        indent = 2 + len(str(name)) - len(str(name).lstrip())
        if str(name).strip():
            yield Text.assemble(f"{first.name} " if first.number else "", _text(name), style=f"bold {row.style}")
        for column, cell in zip(others, cells, strict=True):
            if said := " ".join(str(cell).split()):
                yield Padding(Text(f"{column.name}: {said}" if column.name else said, style=row.style),
                              (0, 0, 0, indent), expand=False)


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


@frozen
class Beside:
    """Tables side by side, or one below the other where there is no room."""

    tables: tuple[Table, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if _line([table.width for table in self.tables]) > options.max_width:
            yield Group(*self.tables)
            return
        row = Grid.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        row.add_row(*self.tables)
        yield row


def beside(*tables: Table) -> Beside:
    """*tables* side by side where there is room."""
    return Beside(tables)


def pairs(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """A table of labels and numbers under a *title*."""
    return Table((Column(title, least=15), Column("", number=True, least=7)), [TableRow(row) for row in rows])


#: The pools in one table; more pools make more tables.
_BESIDE = 4


def pool_tables(summary: Summary) -> Iterator[Table]:
    """Tables of all pools, up to four side by side; none for a run without pools."""
    pools = iter(summary.get("pools", {}).items())
    while some := dict(islice(pools, _BESIDE)):
        yield _of_pools(some)


def groups_of(summary: Mapping[str, Any]) -> Mapping[str, Mapping[str, Summary]]:
    """The rows of workloads, of models and of tenants that have latencies, by name; none for a run without a mix."""
    return {key: summary[key] for key in GROUPS if key in summary and (
        "workloads" in summary or "models" in summary)}


def group_tables(summary: Summary) -> Iterator[Table]:
    """Tables of workloads, of models and of tenants, up to four side by side; none for a run without a mix."""
    for key, rows in groups_of(summary).items():
        groups = iter(rows.items())
        while some := dict(islice(groups, _BESIDE)):
            yield Table((Column(key.title(), least=22), *(Column(name, number=True) for name in some)),
                        [TableRow(tuple(cells)) for cells in group_rows(some)])


def group_rows(groups: Mapping[str, Summary]) -> Iterator[list[str]]:
    """The titles and numbers of these workloads, models or tenants, of all rows that say something of one of them."""
    for row in group_numbers(groups.values()):
        yield [row.title, *(written(row, group.get(row.key)) for group in groups.values())]


def _of_pools(pools: dict[str, Summary]) -> Table:
    return Table((Column("Pools", least=22), *(Column(name, number=True) for name in pools)),
                 [TableRow(tuple(cells)) for cells in pool_rows(pools)])


def pool_rows(pools: Mapping[str, Summary]) -> Iterator[list[str]]:
    """The titles and numbers of these pools, of all rows that say something of one of them."""
    found = list(pools.values())
    yield ["role", *(pool["role"] for pool in found)]
    yield ["GPU", *(pool["gpu"] for pool in found)]
    for row in pool_numbers(found):
        yield [row.title, *(written(row, pool.get(row.key)) for pool in found)]


def as_text(renderable: RenderableType, width: int = WIDTH) -> str:
    """Render without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, force_jupyter=False,
                      legacy_windows=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO), "the console writes where it was told to"
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def markdown(table: Table) -> list[str]:
    """The lines of *table* in Markdown, whose columns stand one below the other; none where it is empty."""
    if not table.rows:
        return []
    rows = [[str(cell).replace("|", r"\|") for cell in cells]
            for cells in (table.names, *(row.cells for row in table.rows))]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    head, *body = [" | ".join(text.rjust(width) if column.number else text.ljust(width)
                              for text, width, column in zip(row, widths, table.columns, strict=True)) for row in rows]
    rule = "|".join(f" {'-' * (width - 1)}{':' if column.number else '-'} "
                    for width, column in zip(widths, table.columns, strict=True))
    return [f"| {head} |", f"|{rule}|", *(f"| {line} |" for line in body)]


def html(table: Table, sortable: bool = False, **attributes: Any) -> Markup:
    """*table* for a page, with all its columns; its title is its caption.

    The first cell of each row is its heading, and the headings of a *sortable* one are buttons.
    """
    styles = [column.style for column in table.columns]
    head = (element("th", _heading(name, sortable), scope="col", cls=style)
            for name, style in zip(table.names, styles, strict=True))
    body = (element("tr", *map(_on_page, range(len(styles)), row.cells, styles)) for row in table.rows)
    made = element("table", element("caption", element("span", table.title)) if table.title else None,
                   element("thead", element("tr", *head)), element("tbody", *body),
                   cls="sortable" if sortable else None, **attributes)
    return element("div", made, cls="scroll", tabindex="0", role="region", aria_label=table.title or "table")


def _heading(name: str, sortable: bool) -> Markup:
    return element("button", breakable(name), type="button", cls="sorter") if sortable else breakable(name)


def _on_page(index: int, cell: Cell, style: str | None) -> Markup:
    shown, value = cell if isinstance(cell, tuple) else (cell, None)
    if isinstance(shown, str) and not isinstance(shown, Markup):
        shown = breakable(shown)
    return element("td" if index else "th", shown, cls=style, data_value=value, **({} if index else {"scope": "row"}))


def notebook(title: str, *parts: Table | str) -> Markup:
    """A titled block for a notebook: tables with all their columns, and texts, of which "" says nothing."""
    inner = (_plain_html(part) if isinstance(part, Table) else element("p", part) for part in parts if part)
    return element("div", element("p", element("b", title)), *inner)


def _plain_html(table: Table) -> Markup:
    styles = ["text-align: right" if column.number else None for column in table.columns]
    rows = [element("tr", *(element(tag, str(cell), style=style) for cell, style in zip(cells, styles, strict=True)))
            for tag, cells in (("th", table.names), *(("td", row.cells) for row in table.rows))]
    return element("table", element("thead", rows[0]), element("tbody", *rows[1:]))

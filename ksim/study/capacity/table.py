"""The answer to a capacity question as a table, and that in Markdown, which reads as well as plain text."""

from collections.abc import Callable, Sequence

from ksim.report.tables import Table
from ksim.report.wording import number
from ksim.study.capacity.answer import COSTS, Standing
from ksim.study.capacity.contest import milliseconds
from ksim.study.capacity.sentence import gpus_text, rates_text
from ksim.study.capacity.targets import Target

#: Where there is no room, these columns are left out, the first one first.
_HIDE = (COSTS["joules_per_million_tokens"], COSTS["usd_per_million_tokens"], "rate, 95 %", "per GPU", "GPUs, 95 %",
         COSTS["joules_per_output_token"], "goodput", "replicas", "binds")


def table(standings: Sequence[Standing], targets: Sequence[Target], rate: float | None) -> Table:
    """A row for each set-up that keeps the targets, the best first; columns that would be empty are left out."""
    standing = [one for one in standings if one.stands]
    texts = {name: [cell(one) for one in standing] for name, cell in _cells(targets, rate).items()}
    shown = {name: column for name, column in texts.items() if any(column)}
    return Table.of(*shown, rows=zip(*shown.values(), strict=True), hide=_HIDE)


def _cells(targets: Sequence[Target], rate: float | None) -> dict[str, Callable[[Standing], str]]:
    """The columns by name, which begins with ">" for numbers, and the text of a set-up's cell."""
    sizes: dict[str, Callable[[Standing], str]] = {
        ">GPUs, 95 %": lambda one: gpus_text(one.gpus_between(rate)), ">replicas": lambda one: f"{one.replicas:,}",
    } if rate is not None else {}
    return {
        "set-up": lambda one: one.setup.name,
        ">GPUs": lambda one: f"{one.gpus:,}",
        **sizes,
        ">highest rate": lambda one: number(one.answer.rate) if one.answer else "",
        ">rate, 95 %": _rates,
        ">per GPU": lambda one: "" if one.rate_per_gpu is None else number(one.rate_per_gpu),
        **{f">{title}": _cost(key) for key, title in COSTS.items()},
        ">goodput": lambda one: number(one.point.goodput[0]) if one.point else "",
        **{f">{target}": _value(target) for target in targets},
        "binds": _binds,
    }


def left_out(standings: Sequence[Standing]) -> list[str]:
    """A line for each set-up that does not keep the targets, which says why."""
    return [f"- {one.setup.name}: {one.problem}" for one in standings if not one.stands]


def markdown(table: Table) -> list[str]:
    """The lines of *table* in Markdown; none where it is empty."""
    if not table.rows:
        return []
    rows = [table.names, *(list(map(str, row.cells)) for row in table.rows)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    head, *body = [_line(row, widths, table) for row in rows]
    rule = "|".join(f" {'-' * (width - 1)}{':' if column.number else '-'} "
                    for width, column in zip(widths, table.columns, strict=True))
    return [head, f"|{rule}|", *body]


def _line(row: Sequence[str], widths: Sequence[int], table: Table) -> str:
    cells = [text.rjust(width) if column.number else text.ljust(width)
             for text, width, column in zip(row, widths, table.columns, strict=True)]
    return f"| {' | '.join(cells)} |"


def _binds(one: Standing) -> str:
    """What a higher rate would miss first."""
    return str(one.binds) if one.binds else "backlog" if one.answer else ""


def _rates(one: Standing) -> str:
    return rates_text(one.answer.interval) if one.answer else ""


def _cost(key: str) -> Callable[[Standing], str]:
    return lambda one: "" if (cost := one.cost(key)) is None else number(cost)


def _value(target: Target) -> Callable[[Standing], str]:
    return lambda one: milliseconds(one.point.values[target][0]) if one.point and target in one.point.values else ""

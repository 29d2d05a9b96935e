"""The answer to a capacity question as a table in Markdown, which reads as well as plain text."""

from collections.abc import Callable, Sequence

from attrs import frozen

from ksim.report.wording import number
from ksim.study.capacity.answer import COSTS, Standing
from ksim.study.capacity.contest import milliseconds
from ksim.study.capacity.sentence import gpus_text, rates_text
from ksim.study.capacity.targets import Target


@frozen
class Column:
    """A title, and the text of a set-up's cell.  Columns of `numbers` are aligned to the right."""

    title: str
    cell: Callable[[Standing], str]
    numbers: bool = True


def columns(standings: Sequence[Standing], targets: Sequence[Target], rate: float | None) -> list[Column]:
    """The columns of those that keep the targets; without those that would be empty."""
    whole = [
        Column("set-up", lambda one: one.setup.name, numbers=False),
        Column("GPUs", lambda one: f"{one.gpus:,}"),
        *([Column("GPUs, 95 %", lambda one: gpus_text(one.gpus_between(rate))),
           Column("replicas", lambda one: f"{one.replicas:,}")] if rate is not None else []),
        Column("highest rate", lambda one: number(one.answer.rate) if one.answer else ""),
        Column("rate, 95 %", _rates),
        Column("per GPU", lambda one: "" if one.rate_per_gpu is None else number(one.rate_per_gpu)),
        *(Column(title, _cost(key)) for key, title in COSTS.items()),
        Column("goodput", lambda one: number(one.point.goodput[0]) if one.point else ""),
        *(Column(str(target), _value(target)) for target in targets),
        Column("binds", _binds, numbers=False),
    ]
    return [column for column in whole if any(column.cell(one) for one in standings)]


def markdown(standings: Sequence[Standing], targets: Sequence[Target], rate: float | None) -> list[str]:
    """The lines of the table, the best set-up first, and a line for each set-up that does not keep the targets."""
    standing = [one for one in standings if one.stands]
    left = [f"- {one.setup.name}: {one.problem}" for one in standings if not one.stands]
    if not standing:
        return left
    shown = columns(standing, targets, rate)
    rows = [[column.title for column in shown], *([column.cell(one) for column in shown] for one in standing)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    head, *body = [_line(row, widths, shown) for row in rows]
    rule = "|".join(f" {'-' * (width - 1)}{':' if column.numbers else '-'} "
                    for width, column in zip(widths, shown, strict=True))
    return [head, f"|{rule}|", *body, *([""] if left else []), *left]


def _line(row: Sequence[str], widths: Sequence[int], shown: Sequence[Column]) -> str:
    cells = [text.rjust(width) if column.numbers else text.ljust(width)
             for text, width, column in zip(row, widths, shown, strict=True)]
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

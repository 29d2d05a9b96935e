"""Phases of requests' time, as `ksim explain` and `ksim diff` show and draw them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from ksim.foundation.errors import ConfigError
from ksim.results.attribution import AFTER, GROUPS, TO_FIRST, by_group, groups, members
from ksim.results.steps import Floats
from ksim.views.tables import Table
from ksim.views.wording import number

if TYPE_CHECKING:
    from ksim.views.figures import Picture

#: How the parts of one request's time are called.
PARTS = {TO_FIRST: "to first token", AFTER: "after it", "all": "all"}


def title_of(key: str) -> str:
    """`p99_ttft` reads as "p99 TTFT"."""
    statistic, _, metric = key.partition("_")
    return f"{statistic} {metric.upper()}"


def phase_table(names: Sequence[str], columns: Mapping[str, Floats], show: Callable[[float], str]) -> Table:
    """A table in milliseconds of groups, of their phases that have seconds in any column, and of the sum."""
    made = timed("ms", columns)
    for group in groups(names):
        inside = [names.index(name) for name in members(group, names)]
        made.add_row(group, *(show(1e3 * float(column[inside].sum())) for column in columns.values()))
        if len(GROUPS[group]) > 1 or GROUPS[group][0].endswith("."):
            for index in _largest_first(inside, columns):
                shown = [show(1e3 * float(column[index])) for column in columns.values()]
                if any(shown):
                    made.add_row(f"  {names[index].partition('.')[2] or names[index]}", *shown, style="dim")
    made.add_section()
    made.add_row(Text("all", style="bold"), *(show(1e3 * float(column.sum())) for column in columns.values()))
    return made


def timed(name: str, titles: Iterable[str]) -> Table:
    """A table of times without rows; medians are left out first where there is no room, then means."""
    titles = [*titles]
    return Table.of(name, *(f">{title}" for title in titles),
                    hide=[title for word in ("median", "mean") for title in titles if title.startswith(word)])


def _largest_first(places: Sequence[int], columns: Mapping[str, Floats]) -> list[int]:
    """*places*, ordered by the largest value in any column."""
    return sorted(places, key=lambda index: -max(abs(float(column[index])) for column in columns.values()))


def plain(milliseconds: float) -> str:
    """*milliseconds* as text; "" where it would read as 0."""
    text = number(milliseconds)
    return text if float(text.replace(",", "")) else ""


def signed(milliseconds: float) -> str:
    """A change in milliseconds with its sign; "" where it would read as 0."""
    text = plain(abs(milliseconds))
    return text and f"{'+' if milliseconds > 0 else '-'}{text}"


def by_phase(names: Sequence[str], seconds: Floats) -> dict[str, Any]:
    """The sum of *seconds* and the seconds of each phase, for a JSON file."""
    return {"seconds": float(seconds.sum()), "phases": dict(zip(names, seconds.tolist(), strict=True))}


def largest(seconds: Floats, names: Sequence[str], most: int = 3) -> Iterator[tuple[str, float]]:
    """The groups with the most seconds, of either sign, that are more than a twentieth of all."""
    parts, titles = by_group(seconds, names), groups(names)
    order = np.argsort(-np.abs(parts), kind="stable")[:most]
    whole = float(np.abs(parts).sum())
    return ((titles[index], float(parts[index])) for index in order.tolist() if abs(parts[index]) > 0.05 * whole)


def draw(folder: Path | None, name: str, picture: "Picture") -> str:
    """Draw *picture* into *folder*, if one is given, and return a line that says so; raises ConfigError."""
    if folder is None:
        return ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return f"drawn into {picture.save(folder / name)}"
    except OSError as error:
        raise ConfigError(str(folder), f"cannot be written: {error.strerror or error}") from error

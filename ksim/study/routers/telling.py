"""A comparison of routers in a table: in which order they come, and which of their numbers are shown.

The figure of a comparison: what it shows of each router.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ksim.results.numbers import DRAWN_OF_ROUTERS, OF_ROUTERS, number_of
from ksim.study.grid import value_text
from ksim.study.routers.plan import OMNISCIENT, PAIR_ROUTER, ROUTER, STALENESS, label
from ksim.study.rows import SweepPoint
from ksim.views.tables import Table
from ksim.views.wording import number, written

if TYPE_CHECKING:
    from ksim.views.figures import Picture
    from ksim.views.figures.studies import Dot


#: The columns of the table, by the numbers that they show, times in ms; those that no run has are left out.
COLUMNS = {key: number_of(key).title.removesuffix(", ms") for key in OF_ROUTERS}
#: The age of what a router sees that goes by nothing that can be late.
NO_AGE = "-"
_GO = ("goes", "go")
#: The regret by which routers are ranked, as `omniscient` minimises the time to the last token; else that to the first.
_RANKS = ("mean_latency_regret_ms", "mean_regret_ms")
#: The numbers of which the table shows intervals, too.
_SURE = ("p90_ttft_ms", *_RANKS)


def router_of(point: SweepPoint) -> str:
    """The router of *point*, as ``--routers`` takes it."""
    return label(point.settings.get(ROUTER) or point.settings[PAIR_ROUTER])


def rank_key(points: Sequence[SweepPoint]) -> str:
    """The number by which *points* are ranked, one for all."""
    return next((key for key in _RANKS if any(point.value(key) is not None for point in points)), _RANKS[0])


def ranked(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Those of *points* that went well: routers by their `rank_key` with the first signals, each by its signals."""
    good = [point for point in points if point.outcome.summary is not None]
    key, regret = rank_key(good), dict[str, float]()
    for point in good:
        value = point.value(key)
        regret.setdefault(router_of(point), math.inf if value is None else value)
    return sorted(good, key=lambda point: (regret[router_of(point)], router_of(point), point.number))


def shown(points: Sequence[SweepPoint]) -> Table:
    """A line for each of *points*."""
    keys = told(points)
    aged = any(STALENESS in point.settings for point in points)
    rows = [(router_of(point), *([age(point)] if aged else []), *(cell(point, key) for key in keys))
            for point in points]
    return Table.of("router", *(["age"] if aged else []), *(f">{COLUMNS[key]}" for key in keys), rows=rows,
                    hide=[*reversed(COLUMNS.values())][:-1])


def told(points: Sequence[SweepPoint]) -> list[str]:
    """The numbers that the table shows: those of `COLUMNS` that any of *points* has."""
    return [key for key in COLUMNS if any(point.value(key) is not None for point in points)]


def age(point: SweepPoint) -> str:
    """The age of what its router sees; a dash where it has none, or the scenario says it."""
    return value_text(point.settings.get(STALENESS, NO_AGE))


def age_title(name: str) -> str:
    """The age *name* as legends have it."""
    return "never old" if name == NO_AGE else name


def lanes(ages: Sequence[str]) -> dict[str, float]:
    """How far below the line of their router the dots of each age are drawn, so that equal ones stand side by side."""
    aged = [name for name in ages if name != NO_AGE]
    step = 0.6 / max(len(aged), 1)
    return {NO_AGE: 0.0} | {name: step * (place - (len(aged) - 1) / 2) for place, name in enumerate(aged)}


def explained(points: Sequence[SweepPoint]) -> Iterator[str]:
    """What may surprise in the table of *points*: regrets below 0, and routers that are the same at all ages."""
    if any((point.value(key) or 0.0) < 0 for point in points for key in _RANKS):
        yield (f"a regret below 0: requests waited less than with {OMNISCIENT}, which minimises the time to the last"
               " tokens of the requests that it knows, not to the first, and knows none that come later")
    by_router: dict[str, list[SweepPoint]] = {}
    for point in points:
        by_router.setdefault(router_of(point), []).append(point)
    ageless = [name for name, own in by_router.items() if age(own[0]) == NO_AGE]
    if len(ageless) < len(by_router):
        if ageless:
            yield f"age {NO_AGE}: what {', '.join(ageless)} {_GO[len(ageless) > 1]} by is never old, so one run is all"
        keys = told(points)
        for name, own in by_router.items():
            if len(own) > 1 and len({tuple(point.value(key) for key in keys) for point in own}) == 1:
                yield f"{name} is the same at all ages: it saw older signals, but chose the same engines"


def notes(points: Sequence[SweepPoint]) -> Iterator[str]:
    """How many runs there are, and which routers cannot run, each reason once."""
    runs, seeds = sum(len(point.rows) for point in points), max((len(point.rows) for point in points), default=0)
    more = f", {seeds} seeds of each; ± is half a 95 % interval" if seeds > 1 else ""
    yield f"{runs:,} runs of {len({router_of(point) for point in points}):,} routers{more}; times in ms"
    for name, problem in dict.fromkeys((router_of(point), point.outcome.problem) for point in points
                                       if point.outcome.summary is None):
        yield f"{name} did not run: {problem}"


def cell(point: SweepPoint, key: str) -> str:
    """A number of *point*, some with half their intervals."""
    value = point.value(key)
    spread = point.half_width(key) if value is not None and key in _SURE else math.nan
    return written(number_of(key), value) + ("" if math.isnan(spread) else f" ± {number(spread)}")


#: The numbers of a figure, a panel each, those first that decide; those that are the same everywhere are left out.
PANELS = {key: number_of(key).title for key in DRAWN_OF_ROUTERS} | {"prefix_cache_hit_rate": "GPU hit rate"}


def picture(title: str, points: Sequence[SweepPoint]) -> "Picture":
    """A line for each router, a panel for each number, and a dot for each age of signals."""
    from ksim.views.figures.studies import routers_chart

    panels = {name: dots_of(points, key) for key, name in PANELS.items()}
    return routers_chart(title, {name: dots for name, dots in panels.items() if dots})


def dots_of(points: Sequence[SweepPoint], key: str) -> list["Dot"]:
    """A dot for each of *points* that have this number; intervals end where values do: times at 0, and shares at 1."""
    from ksim.views.figures.studies import Dot

    beside = lanes(list(dict.fromkeys(map(age, points))))
    least, most = -math.inf if "regret" in key else 0.0, 1.0 if key.endswith("hit_rate") else math.inf
    found = [(point, float(value), point.half_width(key)) for point in points
             if (value := point.value(key)) is not None]
    return [Dot(router_of(point), age_title(age(point)), value, math.nan if math.isnan(width) else max(
        least, value - width), math.nan if math.isnan(width) else min(most, value + width), beside[age(point)])
        for point, value, width in found]

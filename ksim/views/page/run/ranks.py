"""The section of a page on ranks that differ: whom GPUs wait for, and one slow step."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ksim.results.numbers import RANK_WAITS
from ksim.views.page.document import Document, missing, note, table, told
from ksim.views.page.reading import STREAMED, SavedRun
from ksim.views.tables import Markup, element
from ksim.views.wording import number, percent

if TYPE_CHECKING:
    from ksim.results.ranks import Ranks

#: The most GPUs in the table.
_MOST = 64


def add_ranks(document: Document, run: SavedRun) -> None:
    """Add what each GPU did and whom it waited for; nothing for runs whose GPUs cannot differ."""
    if run.summary.get("rank_wait_share") is None or (ranks := run.ranks) is None:
        return
    document.section(
        "ranks", "Ranks", element("p", *_sentence(run)), _picture(document, run),
        table(*_of_each(ranks), "What each GPU did, of the run", sortable=True), *_notes(ranks), _path(ranks))


def _sentence(run: SavedRun) -> Iterator[Markup | str]:
    """How long GPUs wait, and for what."""
    wait = run.summary["rank_wait_share"]
    yield "GPUs wait for others "
    yield told(wait, percent(wait), "rank_wait_share")
    yield " of the run"
    for place, (cause, key) in enumerate(RANK_WAITS.items()):
        yield f"{', ' if place else ': '}{cause} "
        yield told(run.summary[key], percent(run.summary[key]), key)
    yield "."


def _path(ranks: "Ranks") -> Markup:
    from ksim.views.figures.ranks import path_rows

    rows = [[name, number(seconds), percent(share)] for name, seconds, share in path_rows(ranks)]
    return table(("", ">seconds", ">of the steps"), rows, "What the critical path of steps consists of")


def _picture(document: Document, run: SavedRun) -> Markup:
    """The slowest step with a timeline."""
    from ksim.results.ranks import ShownStep
    from ksim.views.figures.ranks import step_chart

    if "slow_step" not in run.overview:
        return missing(f"The picture of a step is not known: {STREAMED}.")
    chart = step_chart(ShownStep.of_content(run.overview["slow_step"]))
    return document.figure("ranks", chart, f"One step, rank by rank: {chart.note}.", height=round(75 * chart.height))


def _of_each(ranks: "Ranks") -> tuple[Sequence[str], list[list[str]]]:
    """The columns and the rows of a table, with the GPUs that others wait for most first."""
    from ksim.views.figures.ranks import TITLES, share, shown_parts

    parts, whole = shown_parts(ranks), max(ranks.duration, 1e-300)
    rows = [[f"GPU {ranks.gpus[place]}", str(ranks.engines[place]), str(ranks.pipeline_stages[place]),
             share(float(ranks.last[place])), *(share(float(ranks.seconds[part][place]) / whole) for part in parts)]
            for place in ranks.order[:_MOST].tolist()]
    return ("", ">engine", ">stage", ">last", *(f">{TITLES[part]}" for part in parts)), rows


def _notes(ranks: "Ranks") -> Iterator[Markup]:
    left = len(ranks) - _MOST
    more = f" {left:,} more GPUs, which others wait for less, are in ranks.parquet." if left > 0 else ""
    yield note(f"Last: the share of its steps' time in which the others waited for this GPU.{more}")

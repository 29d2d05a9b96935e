"""A plan: the sentence, the finalists, the figure of all candidates, and what would change the answer."""

from collections.abc import Iterator
from typing import Any

from ksim.views.charts import Chart
from ksim.views.figures.studies import Answer, plan_panels
from ksim.views.page.document import Document, missing, note, table
from ksim.views.page.studies.reading import Study
from ksim.views.page.studies.sections import toml
from ksim.views.tables import Markup, element
from ksim.views.wording import OBJECTIVES, number

#: The candidates that the table of estimates shows.
_MOST = 40


def add(document: Document, study: Study) -> None:
    """Add the sentence, the finalists, all candidates, and the scenario of the best."""
    answer = study.plan
    document.lead.append(element("p", str(answer["sentence"]), cls="lead"))
    notes = [note(f"Assumed {text}") for text in answer["assumptions"]]
    notes += [note(f"By estimates, {one['what']}: {_gpus(one['gpus'])}") for one in answer["changes"]]
    notes += [note(f"Left out: {count} {reason}") for reason, count in answer["left_out"].items()]
    document.section("finalists", "The finalists, as simulated", _finalists(answer), *notes)
    document.section("candidates", "All candidates that carry the load", *_candidates(document, answer))
    if study.best:
        document.section("best", "The scenario of the answer", toml("best-scenario", study.best, "best.toml"))


def _gpus(count: int | None) -> str:
    return "no number of GPUs" if count is None else f"{count:,} GPUs"


def _finalists(answer: Answer) -> Markup:
    if not answer["finalists"]:
        return missing("No candidate carries the load, by estimates.")
    columns = ("deployment", *(f">{name}" for name in OBJECTIVES.values()),
               *(f">{target}, ms" for target in answer["targets"]), "why it does not stand")
    rows = [[one["name"], *_cells([*_costs(one), *(
        _milliseconds(one["seconds"].get(target, {}).get("value")) for target in answer["targets"])]),
        one["problem"] or ""] for one in answer["finalists"]]
    return table(columns, rows, "The best first", sortable=True)


def _costs(one: Answer) -> Iterator[float | None]:
    return (one["costs"].get(key) for key in OBJECTIVES)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _cells(values: list[float | None]) -> list[Any]:
    """Each value as text, and itself to sort by."""
    return [("-" if value is None else number(value), value) for value in values]


def _candidates(document: Document, answer: Answer) -> Iterator[Any]:
    if not answer["options"]:
        yield missing("By estimates, no candidate carries the load.")
        return
    what = ("The costs of each candidate" if len(answer["minimize"]) > 1 else
            "What each candidate costs, and how close its worst target is to its limit")
    yield document.figure("front", Chart("", plan_panels(answer)), what)
    columns = ("deployment", *(f">{name}" for name in OBJECTIVES.values()),
               *(f">{target}, ms" for target in answer["targets"]))
    rows = [[one["name"], *_cells([*_costs(one), *(
        _milliseconds(one["seconds"][target]) for target in answer["targets"])])] for one in answer["options"][:_MOST]]
    yield table(columns, rows, f"Estimates, the cheapest first, {_MOST} at most", sortable=True)

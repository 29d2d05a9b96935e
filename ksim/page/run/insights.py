"""What stands out in a run, warnings first."""

from ksim.page.document import Document
from ksim.page.markup import element, note
from ksim.page.reading import Run


def add(document: Document, run: Run) -> None:
    """Add the insights; nothing where a run has none."""
    entries = [element("li", element("strong", "Warning: ") if insight.warning else None, insight.text,
                       cls="warning" if insight.warning else None) for insight in run.insights]
    partial = None if "insights" in run.overview else note(
        "Only what summary.json tells: this run was streamed, or written by an older ksim.")
    if entries or partial:
        document.section("insights", "What stands out", element("ul", *entries, cls="insights") if entries else None,
                         partial)

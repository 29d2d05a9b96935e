"""The page of one run: each section reads a `Run` and adds to a `Document`."""

from ksim.page.document import Document
from ksim.page.reading import Run
from ksim.page.run import (
    answer,
    chooser,
    insights,
    kernels,
    latency,
    missed,
    phases,
    pools,
    roofline,
    routing,
    settings,
    timeline,
)

#: In the order of the page.
SECTIONS = (insights.add, latency.add, timeline.add, phases.add, kernels.add, roofline.add, missed.add, chooser.add,
            pools.add, routing.add, settings.add)


def run_page(run: Run) -> Document:
    """The page of *run*."""
    document = Document(run.subject, f"ksim run · {run.directory.name}", scripts=("requests.js",))
    document.lead.extend(answer.lead(run))
    for add in SECTIONS:
        add(document, run)
    return document

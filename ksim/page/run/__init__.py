"""The page of one run: each module is a section, which reads a `Run` and adds to a `Document`."""

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
SECTIONS = (insights, latency, timeline, phases, kernels, roofline, missed, chooser, pools, routing, settings)


def run_page(run: Run) -> Document:
    """The page of *run*."""
    document = Document(run.subject, f"ksim run · {run.directory.name}", scripts=("requests.js",))
    document.lead.extend(answer.lead(run))
    for section in SECTIONS:
        section.add(document, run)
    return document

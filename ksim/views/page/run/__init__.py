"""The page of one run: each section reads a `SavedRun` and adds to a `Document`."""

from ksim.views.page.document import Document
from ksim.views.page.reading import SavedRun
from ksim.views.page.run import kernels, latency, lead, ranks, scaling

#: In the order of the page.
SECTIONS = (lead.add_insights, latency.add_latency, latency.add_timeline, scaling.add_scaling, kernels.add_phases,
            kernels.add_kernels, kernels.add_roofline, lead.add_missed, lead.add_chooser, latency.add_pools,
            latency.add_groups, ranks.add_ranks, latency.add_routing, latency.add_settings)


def run_page(run: SavedRun) -> Document:
    """The page of *run*."""
    document = Document(run.subject, f"ksim run · {run.directory.name}", scripts=("requests.js",))
    document.lead.extend(lead.lead(run))
    for add in SECTIONS:
        add(document, run)
    return document

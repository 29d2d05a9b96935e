"""The page of a study: each section reads a `Study` and adds to a `Document`."""

from ksim.views.page.document import Document
from ksim.views.page.studies import capacity, plan, routers, sections
from ksim.views.page.studies.reading import Study
from ksim.views.page.studies.sections import lead

#: In the order of the page; a study of capacity has its own first.
SECTIONS = (routers.add_routers, sections.add_front, sections.add_chosen, sections.add_history,
            sections.add_parallel, sections.add_points)


def study_page(study: Study) -> Document:
    """The page of *study*."""
    document = Document(_title(study), f"ksim {study.kind} · {study.directory.name}",
                        scripts=("points.js", "parallel.js"))
    if study.capacity:
        document.lead.extend(capacity.lead(study.capacity))
        capacity.add(document, study)
    elif study.plan:
        plan.add(document, study)
    else:
        document.lead.extend(lead(study))
        for add in SECTIONS:
            add(document, study)
    sections.add_settings(document, study)
    return document


def _title(study: Study) -> str:
    """The title of a page, which for a study of capacity is more than the scenario's name."""
    return f"Capacity of {study.title}" if study.capacity and "apacity" not in study.title else study.title

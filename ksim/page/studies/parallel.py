"""Parallel coordinates: a line for each point across its settings and numbers; parallel.js draws and brushes them."""

from ksim.page.document import Document
from ksim.page.markup import details, element, note
from ksim.page.studies.reading import Study
from ksim.page.studies.wording import shown_keys

#: Numbers that have an axis at first.
_MOST = 5


def add(document: Document, study: Study) -> None:
    """Add the place for the axes and their bounds; nothing where no point went well."""
    if "study" not in document.data:
        return
    first = [key for key in shown_keys(study) if key in study.keys][:_MOST] or study.keys[:_MOST]
    document.data["study"]["parallel"] = first
    boxes = (element("label", element("input", type="checkbox", value=key, checked=key in first), f" {key}")
             for key in study.keys)
    document.section(
        "parallel", "Parallel coordinates",
        note("Drag along an axis, or type bounds below it, to keep only the lines that pass there. Colours go with the"
             " objective that the front has up."),
        element("div", id="parallel-plot", cls="scroll", tabindex="0", role="group",
                aria_label="Parallel coordinates; the bounds below say and set the same"),
        element("form", id="parallel-bounds", cls="controls"),
        element("p", element("button", "Forget all bounds", type="button", id="parallel-reset"), " ",
                element("span", id="parallel-said", cls="note", aria_live="polite"), cls="buttons"),
        details("Choose the numbers", element("div", *boxes, cls="boxes", id="parallel-keys")))

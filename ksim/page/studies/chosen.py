"""A chosen point: its settings, its numbers, and its scenario to copy or to save."""

from ksim.page.document import Document
from ksim.page.markup import element
from ksim.page.studies.reading import Study


def add(document: Document, study: Study) -> None:
    """Add the chooser, which points.js fills; nothing where no point went well."""
    if "study" not in document.data:
        return
    options = (element("option", f"point {number}: {name}", value=at) for at, (number, name) in enumerate(
        zip(document.data["study"]["points"], document.data["study"]["names"], strict=True)))
    form = element("form", element("label", "Point ", element("select", *options, id="point")),
                   element("button", "Previous", type="button", id="point-previous"),
                   element("button", "Next", type="button", id="point-next"), cls="controls", id="point-form")
    document.section("chosen-point", "Choose a point", form, element("div", id="point-told", aria_live="polite"),
                     toml("point-scenario", "", "scenario.toml"))


def toml(ident: str, text: str, name: str) -> object:
    """A scenario with buttons that copy and save it."""
    return element("div", element("p", element("button", "Copy", type="button", cls="copy", data_copies=ident),
                                  " ", element("button", f"Save as {name}", type="button", cls="copy", data_saves=ident,
                                               data_name=name),
                                  " ", element("span", cls="note", role="status", id=f"{ident}-said"), cls="buttons"),
                   element("pre", element("code", text, id=ident), tabindex="0"))

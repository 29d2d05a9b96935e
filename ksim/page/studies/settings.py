"""What a study did: its command, and the scenario that it started from."""

import json
from typing import Any

from ksim.page.document import Document
from ksim.page.markup import breakable, details, element, table
from ksim.page.studies.reading import Study


def add(document: Document, study: Study) -> None:
    """Add the command of the study, setting by setting, and its scenario."""
    rows = [(breakable(key), _shown(value)) for key, value in study.command.items()]
    asked = table(("setting", "value"), rows, f"The {study.kind}") if rows else None
    document.section("settings", "What was asked", asked,
                     details("The scenario that it starts from",
                             element("pre", element("code", study.scenario), tabindex="0")))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)

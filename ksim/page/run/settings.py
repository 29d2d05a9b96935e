"""All settings of the run, those that were set first, and all numbers of its summary."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ksim.foundation.errors import KsimError
from ksim.page.document import Document
from ksim.page.markup import Markup, breakable, details, element, missing, note, table, told
from ksim.page.reading import Run
from ksim.report.run_directory import flat

#: Keys that say what is simulated, set or not.
_SUBJECT = ("model", "gpu", "system", "nodes", "workload", "slo", "pools")


def add(document: Document, run: Run) -> None:
    """Add the settings that were set, those that are defaults, the file, and all numbers."""
    if not run.settings:
        document.section("settings", "Settings and numbers", missing("scenario.toml is missing."), _numbers(run))
        return
    usual = defaults(run)
    chosen = {key: value for key, value in run.settings.items()
              if usual is None or key.split(".")[0] in _SUBJECT or key not in usual or usual[key] != value}
    rest = {key: value for key, value in run.settings.items() if key not in chosen}
    title = "Settings" if usual is None else "What the scenario sets"
    why = note("Which of them are defaults cannot be told here: a plug-in or a file that the scenario names is missing."
               ) if usual is None else note("Values that equal the default count as defaults.")
    document.section(
        "settings", "Settings and numbers", _table(title, chosen), why,
        details(f"{len(rest)} settings at their defaults", _table("Defaults", rest)) if rest else None,
        details("scenario.toml", element("pre", element("code", run.scenario), tabindex="0")), _numbers(run))


def defaults(run: Run) -> Mapping[str, Any] | None:
    """The settings of a scenario that names the same model and GPU, and nothing else; None if it cannot be made."""
    from ksim.simulation.deployment import Deployment
    from ksim.simulation.scenario import ANY_WORKLOAD, Scenario

    same = {key: run.settings[key] for key in ("model", "gpu", "system", "nodes", "engine") if key in run.settings}
    try:
        text = Deployment.of(Scenario.of({**same, "workload": ANY_WORKLOAD})).scenario.to_toml()
    except KsimError:
        return None
    return flat(text)


def _table(title: str, settings: Mapping[str, Any]) -> Markup:
    return table(("setting", "value"), [[breakable(key), _shown(value)] for key, value in settings.items()], title)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _numbers(run: Run) -> Markup:
    return details("All numbers of summary.json", table(("key", ">value"), _every(run.summary), "Numbers of the run"))


def _every(summary: Mapping[str, Any], pool: str | None = None) -> Iterator[list[Any]]:
    for key, value in summary.items():
        if key == "pools":
            for name, part in value.items():
                yield from _every(part, name)
        else:
            yield [f"pools.{pool}.{key}" if pool else key, told(value, _shown(value), key, pool)]

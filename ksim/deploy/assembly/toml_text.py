"""An imported scenario as a file: TOML, with comments that say what became of the words it was made from."""

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from ksim.deploy.launches import Imported, Note
from ksim.foundation import catalog
from ksim.foundation.errors import one_line
from ksim.foundation.files import is_there

_WIDTH = 110
_TABLES = ("serve", "pools", "workload")


def commented(imported: Imported, folder: Path) -> str:
    """*imported* as a scenario file in *folder*."""
    head = ["# Made by `ksim import`.", *_section("Assumed, or different here:", imported.remarks),
            *_section("Filled in, as the engine does:", imported.filled),
            *_section("Without effect here:", imported.idle)]
    return "\n".join(head) + "\n\n" + tomli_w.dumps(_ordered(seen_from(folder, imported.table)))


def _section(title: str, notes: Iterable[Note]) -> Iterator[str]:
    """The *notes* as lines of comments; those of one reason are together."""
    reasons: dict[str, list[str]] = {}
    for note in notes:
        reasons.setdefault(note.why, []).append(f"{note.word} ({note.where})" if note.where else note.word)
    if reasons:
        yield from ("#", f"# {title}")
    for why, words in reasons.items():
        said = one_line(" ".join(f"{', '.join(words)}: {why}".split()))
        yield from textwrap.wrap(said, _WIDTH, initial_indent="# * ", subsequent_indent="#   ",
                                 break_long_words=False, break_on_hyphens=False)


def _ordered(table: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with its plain keys first, as TOML wants them, and its tables in a reader's order."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    named = {key: table[key] for key in _TABLES if table.get(key)}
    return {**plain, **{key: value for key, value in table.items() if key not in plain and key not in _TABLES}, **named}


def seen_from(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """*table* with the paths of its files as a scenario in *folder* writes them."""
    return {key: seen_from(folder, value) if isinstance(value, Mapping) else _path(folder, key, value)
            for key, value in table.items() if value is not None}


def _path(folder: Path, key: str, value: Any) -> Any:
    is_path = isinstance(value, str) and (key == "path" or (key in ("model", "gpu", "system", "host", "engine") and (
        catalog.is_file(value) or is_there(Path(value)))))
    return os.path.relpath(value, folder) if is_path else value

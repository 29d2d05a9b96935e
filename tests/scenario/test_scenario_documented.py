"""Every key of a scenario is documented where it is defined, and the page and the schema say what the code says."""

import inspect
import re
import tomllib
from pathlib import Path
from typing import get_args

import attrs
import pytest

from benchmarks import reference
from ksim.foundation import catalog
from ksim.foundation.config import Choice, kinds_of
from ksim.foundation.keys import keys
from ksim.scenario.scenario import Scenario
from ksim.scenario.schema import FILE


def tables(cls: type = Scenario) -> list[type]:
    """*cls* and the classes of the tables in it; docs/plugins.md has the keys of data files, which a table may change.
    """
    found = [cls]
    for key in keys(cls):
        part = None if key.names else key.part_of
        members = kinds_of(key.kind).values() or [key.kind, part, *get_args(key.kind)]
        found += [each for member in members if attrs.has(member) and member is not Choice for each in tables(member)]
    return list(dict.fromkeys(found))


EVERY = [(cls, key) for cls in tables() for key in keys(cls) if key.name != "kind"]


def test_every_key_is_documented():
    how = "ksim/foundation/keys.py says how; then run `python -m benchmarks.reference`"
    for cls, key in EVERY:
        file = Path(inspect.getsourcefile(cls)).relative_to(reference.ROOT)
        place = f"{file}, under the field {cls.__name__}.{key.name}"
        assert key.text.endswith("."), f"add a documentation string in {place}; {how}"
        number = key.quantity or key.kind in (int, float)
        assert not number or "Unit" in key.labels, f'add "Unit: ..." to the string in {place}; {how}'
        opened = key.default is None and not key.required
        assert not opened or "Default" in key.labels, f'say where it is from: add "Default: ..." in {place}; {how}'


def test_examples_of_keys_are_toml():
    for _, key in EVERY:
        if example := key.labels.get("Example"):
            tomllib.loads(f"{key.name} = {example}")


def test_every_table_is_on_the_page():
    assert {*tables()} == {*reference.SECTIONS.values()}, "add the class to benchmarks/reference.py, SECTIONS"


@pytest.mark.parametrize("name", ["keys", "examples", "plug-ins"])
def test_the_page_is_what_the_code_says(name):
    text = reference.PAGE.read_text(encoding="utf-8")
    shown = text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->\n")[0]
    assert shown.splitlines() == reference.pages()[name], "run `python -m benchmarks.reference`"


@pytest.mark.parametrize("folder", reference.TOPICS)
def test_a_page_describes_every_plugin_of_its_folder(folder):
    page = (reference.PAGE.parent / reference.TOPICS[folder].partition("#")[0]).read_text(encoding="utf-8")
    assert not [name for name in catalog.names(folder) if not re.search(rf"^\| .*[`\"]{name}[`\"]", page, re.MULTILINE)]


def test_the_schema_that_ships_is_what_the_code_says():
    assert FILE.read_text(encoding="utf-8") == reference.schema_text(), "run `python -m benchmarks.reference`"

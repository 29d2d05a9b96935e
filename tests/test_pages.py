"""The commands and keys that the pages show exist, and links lead somewhere."""

import re
import shlex
from pathlib import Path

import attrs
import pytest
import typer

import ksim
from ksim.cli import app
from ksim.foundation.config import Choice, kinds_of
from ksim.foundation.keys import keys
from ksim.simulation.scenario import Scenario

ROOT = Path(ksim.__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def commands(page):
    """Those that it shows, without remarks behind them; a backslash at the end of a line goes on in the next."""
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    return [re.split(r"  | # ", line)[0] for line in re.findall(r"^    (ksim [a-z].*)", text, re.MULTILINE)]


COMMANDS = {line: page.name for page in PAGES for line in commands(page)}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.parametrize("line", COMMANDS, ids=[f"{page}: {line}" for line, page in COMMANDS.items()])
def test_a_command_can_be_read(line, capsys):
    """Its name, options and values, that is; tests/test_readme.py runs those of the README."""
    if "|" in line and not re.search(r"'[^']*\|", line):
        line = line.partition("|")[0]  # one of several, or into another program
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.make_context("ksim", words)
    for text in [*(context.params.get("settings") or []), *(context.params.get("over") or [])]:
        _find(text.partition("=")[0].split("."))


def _find(path, cls=Scenario):
    """Follow the *path* of a dotted key; options of plug-ins are theirs to know."""
    known = {key.name: key for key in keys(cls)}
    assert path[0] in known, f"no key {path[0]}"
    kind = known[path[0]].kind
    if path[1:] and attrs.has(kind) and kind is not Choice:
        _find(path[1:], kind)
    elif path[1:]:
        assert kind is Choice or kinds_of(kind)


def test_a_key_that_is_not_there_is_noticed():
    with pytest.raises(AssertionError, match="no key max_num_sequences"):
        _find(["serve", "max_num_sequences"])


@each_page
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), f"{link} is not there"


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in PAGES if page.parent == ROOT / "docs"}
    assert {*re.findall(r"^\| \[([\w-]+\.md)\]", index, re.MULTILINE)} == pages - {"README.md"}

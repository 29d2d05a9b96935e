"""The commands and keys that the pages show exist, and links lead somewhere."""

import re
import shlex
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import get_args, get_origin

import attrs
import click
import pytest
import typer

import ksim
from benchmarks import accuracy
from benchmarks import commands as made
from ksim.cli import app
from ksim.foundation import catalog
from ksim.foundation.config import Choice, kinds_of
from ksim.foundation.errors import DISTRIBUTION
from ksim.foundation.keys import keys
from ksim.scenario.scenario import Scenario
from ksim.specs.pools import PoolSettings
from ksim.specs.settings import EngineSettings

ROOT = Path(ksim.__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page):
    """Those that it shows, without remarks behind them; a backslash at the end of a line goes on in the next."""
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    return [re.split(r"  | # ", line)[0] for line in re.findall(r"^    (ksim [a-z].*)", text, re.MULTILINE)]


COMMANDS = {line: page.name for page in PAGES for line in commands(page)}


def test_commands_can_be_read():
    """Their names, options and values, that is; tests/test_readme.py runs those of the README."""
    root = typer.main.get_command(app)
    for line, page in COMMANDS.items():
        try:
            _read(root, line)
        except (AssertionError, KeyError, click.ClickException) as error:
            raise AssertionError(f"{page}: {line}") from error


def _read(command, line):
    if "|" in line and not re.search(r"'[^']*\|", line):
        line = line.partition("|")[0]  # one of several, or into another program
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.make_context("ksim", words)
    over = context.params.get("over") or []
    for text in [*(context.params.get("settings") or []), *(over if command.name != "autoscalers" else [])]:
        _find(text.partition("=")[0].split("."))
    for text in over if command.name == "autoscalers" else []:
        assert text.partition(".")[0] in catalog.names("autoscaling"), f"no autoscaler for {text}"


def _find(path, cls=Scenario):
    """Follow the *path* of a dotted key; options of plug-ins are theirs to know."""
    known = {key.name: key for key in keys(cls)}
    assert path[0] in known, f"no key {path[0]}"
    kind = known[path[0]].part_of or known[path[0]].kind
    if path[1:] and attrs.has(kind) and kind is not Choice:
        _find(path[1:], kind)
    elif path[1:] and get_origin(kind) is Mapping and attrs.has(entry := get_args(kind)[1]):  # one of a name, as a pool
        _find(path[2:], entry)
    elif path[1:] and cls is PoolSettings and path[0] == "serve":
        _find(path[1:], EngineSettings)
    elif path[1:]:
        assert kind is Choice or kinds_of(kind)


def test_commands_in_the_text_of_pages_exist():
    """Those that they show on lines of their own are read above."""
    headings = re.findall(r"^## (ksim .*)", "\n".join(made.lines()), re.MULTILINE)
    known = {*headings, "ksim validate", "ksim gpu"}
    for page in PAGES:
        named = re.findall(r"`(ksim (?:(?:validate|gpu) )?[a-z][\w-]*)", page.read_text(encoding="utf-8"))
        assert page.name == "CHANGELOG.md" or {*named} <= known, page


def test_a_key_that_is_not_there_is_noticed():
    with pytest.raises(AssertionError, match="no key max_num_sequences"):
        _find(["serve", "max_num_sequences"])


def slug(heading):
    """The anchor that GitHub, and the site, give a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\s-]", "", text).strip().replace(" ", "-")


@cache
def headings(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(line) for line in re.findall(r"^#+ (.*)", text, re.MULTILINE)}


def test_links_lead_somewhere():
    """To files of the repository, and to headings of pages; of other addresses, only the shape is checked."""
    for page in PAGES:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            if "://" in link:
                assert re.fullmatch(r"https?://[\w.-]+\.\w+(/\S*)?", link), f"{page}: {link}"
                continue
            target = page.parent / link if link else page
            assert target.exists(), f"{page}: {link} is not there"
            assert not anchor or anchor in headings(target), f"{page}: {link}#{anchor} is not there"


def test_no_page_has_marks_of_a_merge():
    for page in PAGES:
        assert not re.search(r"^(<<<<<<<|=======|>>>>>>>)", page.read_text(encoding="utf-8"), re.MULTILINE), page


def test_files_of_the_package_that_pages_name_are_there():
    """Also without `ksim/` before them; NAME stands for any.  Pages of what was may name what is no more."""
    packages = {path.name for path in (ROOT / "ksim").iterdir() if path.is_dir()}
    for page in PAGES:
        if page.parent.name != "evidence" and page.name != "CHANGELOG.md":
            named = re.findall(r"`(?:ksim/)?([a-z_]+)/([\w/]*(?:\.py)?)`", page.read_text(encoding="utf-8"))
            assert not [f"{package}/{rest}" for package, rest in named if package in packages
                        and not (ROOT / "ksim" / package / rest.partition("NAME")[0]).exists()], page


def test_what_pages_and_messages_install_is_this_project_with_extras_that_it_has():
    """`ksim` is another project on the package index."""
    sources = [*PAGES, *(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "ksim").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "CHANGELOG.md")
    assert "ksim[" not in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"""ksim-llm\[([\w,]+)\]|(?:MissingExtra|installing)\("(\w+)\"""", text)
    extras = {extra for found in named for extra in "".join(found).split(",")}
    assert project["name"] == DISTRIBUTION and {"server", "fit"} <= extras <= {*project["optional-dependencies"]}


def test_the_index_and_the_site_list_every_page():
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    for index in (ROOT / "docs").rglob("README.md"):
        rows = re.findall(r"^\| \[([\w-]+\.md)\]", index.read_text(encoding="utf-8"), re.MULTILINE)
        assert {*rows} == {page.name for page in index.parent.glob("*.md")} - {"README.md"}, index
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"- (?:.*: )?([\w/-]+)\.md$", site, re.MULTILINE)
    notebooks = {f"tutorials/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(listed) == len({*listed})
    assert {*listed} == pages | notebooks | {"CONTRIBUTING", "CHANGELOG", "SECURITY"}


def test_the_first_table_of_the_page_of_accuracy_follows_from_the_others():
    page = (ROOT / accuracy.PAGE).read_text(encoding="utf-8")
    table = page.partition("<!-- whole -->\n")[2].partition("<!-- /whole -->")[0]
    assert table.splitlines() == [*accuracy.whole(page)], "run `python -m benchmarks.accuracy whole`"


def test_the_figures_of_what_to_trust_are_those_of_the_pages_behind_it():
    """Each with a decimal, somewhere in them; the tables by GPU, row by row."""
    trust, *behind = sorted((ROOT / "docs" / "evidence").glob("*.md"))
    text, figure = trust.read_text(encoding="utf-8"), re.compile(r"(?<![\d.,])\d+\.\d+(?![\d.])")
    known = {found for page in behind for found in figure.findall(page.read_text(encoding="utf-8"))}
    assert trust.name == "README.md" and {*figure.findall(text)} <= known | {"1.4", "3.2"}, "1.4 and 3.2 are rounded"
    whole = (ROOT / accuracy.PAGE).read_text(encoding="utf-8").partition("<!-- whole -->")[2].partition("<!-- /")[0]
    for row in text.partition("| GPU | vLLM |")[2].partition("\n\n")[0].splitlines()[2:]:
        gpu = row.split("|")[1].strip()
        there = {found for line in whole.splitlines() if f"| {gpu} |" in line for found in figure.findall(line)}
        assert {*figure.findall(row)} <= there, f"{gpu}: copy the table of docs/evidence/accuracy.md"


def test_the_page_of_commands_is_made_from_the_code():
    shown = made.PAGE.read_text(encoding="utf-8")
    table = shown.partition("<!-- commands -->\n")[2].partition("<!-- /commands -->")[0]
    assert table.splitlines() == made.lines(), "run `python -m benchmarks.reference`"

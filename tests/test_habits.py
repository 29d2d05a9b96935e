"""What CONTRIBUTING.md, CITATION.cff, the workflow, the templates and the list of slow tests say is so."""

import ast
import re
import shutil
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

import ksim
from ksim.cli.catalogue import CatalogKind
from tests.slow import SLOW

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_contributing_has_a_row_for_every_kind_that_is_listed() -> None:
    kinds = re.findall(r"^\| [^|]+ \| `(\w+)` \|", CONTRIBUTING, re.MULTILINE)
    assert sorted(kinds) == sorted(CatalogKind)


def test_contributing_names_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"(?:`|^    )make ([a-z-]+)", CONTRIBUTING, re.MULTILINE)
    assert {"test", "test-fast", "explore", "lint"} <= {*named} <= {*targets}


def test_contributing_names_paths_that_are_there() -> None:
    for path in re.findall(r"`((?:ksim|tests|docs)/[^`]*)`", CONTRIBUTING):
        folder = re.sub(r"(NAME|PACKAGE|\*).*", "", path)
        assert (ROOT / folder).exists(), path


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_one_run_needs_no_libraries_of_tests(tmp_path) -> None:
    """`make run` installs what ksim needs to run; a target of the tests installs theirs at once."""
    def installed(target: str) -> list[str]:
        words = ["make", "--dry-run", target, f"VENV={tmp_path}"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        return re.findall(r"pip install .*-e '(.*)'$", done.stdout, re.MULTILINE)

    assert installed("run") == ["."]
    assert installed("test") == installed("lint") == installed("pages") == [".[test]"]
    assert installed("docs") == [".", ".[docs]"]


def test_the_workflow_runs_every_python_of_the_classifiers() -> None:
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+", line)]
    assert re.findall(r'"([\d.]+)"', matrix) == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_citation_is_of_this_version_and_place() -> None:
    """And has the keys that the Citation File Format 1.2.0 asks for, or knows."""
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert said["version"] == ksim.__version__
    assert said["repository-code"] == PROJECT["urls"]["Source"]
    assert said["cff-version"] == "1.2.0" and said["type"] == "software" and said["license"] == PROJECT["license"]
    assert {"message", "title", "authors"} <= {*said} <= {
        "cff-version", "message", "type", "title", "abstract", "authors", "version", "date-released", "license",
        "repository-code", "url", "keywords"}
    assert all({*author} <= {"name", "website", "email"} and author["name"] for author in said["authors"])
    assert isinstance(said["date-released"], date) and all(isinstance(word, str) for word in said["keywords"])


def test_the_newest_changes_are_of_this_version() -> None:
    headings = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    versions = [heading for heading in headings if heading != "Unreleased"]
    assert versions[0].partition(" ")[0] == ksim.__version__
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in versions)


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")), ids=lambda path: path.name)
def test_issue_templates_are_as_github_reads_them(path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert {*form} == {"blank_issues_enabled", "contact_links"}
        assert all({*link} == {"name", "url", "about"} for link in form["contact_links"])
        return
    assert {*form} == {"name", "description", "labels", "body"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields) and all(part["attributes"]["label"] for part in fields)
    assert {part["type"] for part in form["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    assert all({*part} <= {"type", "id", "attributes", "validations"} for part in form["body"])


def test_slow_modules_are_there_and_leave_some_of_every_folder() -> None:
    modules = {path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert modules >= SLOW
    folders = {module.partition("/")[0] for module in modules if "/" in module}
    assert folders <= {module.partition("/")[0] for module in modules - SLOW}


def test_modules_of_tests_import_nothing_from_each_other() -> None:
    """What several need is in modules without tests, such as tests/cli/command.py."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert not any(part.startswith("test_") for name in imported for part in name.split(".")), (
                    f"{path}:{node.lineno}")

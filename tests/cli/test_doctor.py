"""`ksim doctor`: what it finds, and how it ends where something is broken."""

import json
import re
import sys
import tomllib

import pytest

from ksim.cli import doctor_checks, start
from ksim.cli.doctor_checks import BROKEN, EXTRAS, NEEDED, NOTE, OK, Finding
from tests.cli.command import ROOT, ksim_here

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Extras for those who work on ksim.
OURS = {"dev", "test", "docs", "release"}


def split(requirement):
    """The name and the oldest version that a line of pyproject.toml asks for."""
    return re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement).groups()


def test_it_looks_for_what_the_project_needs():
    assert dict(map(split, PROJECT["dependencies"])) == NEEDED
    for extra, needed in PROJECT["optional-dependencies"].items():
        if extra not in OURS:
            assert sorted(split(line)[0] for line in needed) == sorted(EXTRAS[extra][0])


def test_all_is_well_here(tmp_path):
    outcome = ksim_here("doctor", "--json", "d.json", folder=tmp_path)
    assert outcome.status == 0, outcome.stderr
    assert "numbers of a run of 5 requests are as elsewhere" in outcome.stdout and "gpus with profile" in outcome.stdout
    content = json.loads((tmp_path / "d.json").read_text())
    assert content["ok"] and {finding["area"] for finding in content["findings"]} == {
        "versions", "packages", "extras", "catalogue", "caches", "shell", "machine", "self-check"}
    assert all(finding["remedy"] for finding in content["findings"] if finding["status"] != OK)


def only(monkeypatch, *findings):
    monkeypatch.setattr(start, "_findings", lambda: findings)


def test_what_is_broken_is_said_with_the_remedy_and_status_1(tmp_path, monkeypatch):
    monkeypatch.setitem(NEEDED, "numpy", "99.0")
    monkeypatch.setitem(NEEDED, "no-such-package", "1.0")
    only(monkeypatch, *doctor_checks.versions())
    outcome = ksim_here("doctor", "--json", "-", folder=tmp_path)
    assert outcome.status == 1 and not json.loads(outcome.stdout)["ok"]
    assert outcome.stderr.startswith("ksim: 2 of ") and outcome.stderr.count("\n") == 1
    assert "older than 99.0: pip install --upgrade 'numpy>=99.0'" in outcome.stderr
    assert "missing: pip install 'no-such-package>=1.0'" in outcome.stderr


@pytest.mark.parametrize(("change", "words"), [
    ({"DIGITS": {**start.DIGITS, "duration": 1.0}}, "duration is 0.06"),
    ({"SCENARIO": {**start.SCENARIO, "model": "gone"}}, "no model named 'gone'")])
def test_a_run_that_comes_to_something_else_is_broken(change, words, monkeypatch):
    for name, value in change.items():
        monkeypatch.setattr(start, name, value)
    finding = start._self_check()
    assert finding.status == BROKEN and words in finding.text and "reinstall" in finding.remedy


def test_an_extra_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(EXTRAS, "tune", (("no-such-package",), "`ksim tune`"))
    (finding,) = (finding for finding in doctor_checks.extras() if finding.name == "tune")
    assert (finding.value, finding.remedy) == (
        False, "pip install 'ksim-llm[tune]' (from a checkout: pip install -e '.[tune]')")


@pytest.mark.parametrize(("files", "url", "status"), [
    ("RECORD", "Homepage, https://example.org/robots", BROKEN),
    ("RECORD", "Homepage, https://github.com/ksim-project/ksim", NOTE), ("", "Homepage, https://example.org", None)])
def test_another_distribution_called_ksim_is_noticed(files, url, status, tmp_path, monkeypatch):
    """That of the package index breaks this one; this project's earlier name does not; what a build left is nothing."""
    folder = tmp_path / "ksim-0.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: ksim\nVersion: 0.9\nProject-URL: {url}\n")
    if files:
        (folder / files).write_text("ksim/__init__.py,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = [*doctor_checks.namesakes()]
    assert [(finding.value, finding.status) for finding in found] == ([("0.9", status)] if status else [])
    assert all(finding.remedy.startswith("pip uninstall ksim, then pip install --force-reinstall ksim-llm ")
               for finding in found)


def test_caches_and_completion_are_those_of_the_user(tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache" / "ksim").mkdir(parents=True)
    (tmp_path / ".cache" / "ksim" / "a.prices").write_bytes(b"x" * 1000)
    found = {finding.name: finding for finding in (*doctor_checks.caches(), *doctor_checks.shell())}
    assert found["old_ksim_bytes"].value == 1000 and "rm -r" in found["old_ksim_bytes"].remedy
    assert found["completion"].remedy == "ksim --install-completion"
    ksim_here("--install-completion", "fish", folder=tmp_path)
    assert {finding.name: finding for finding in doctor_checks.shell()}["completion"].value == ["fish"]


def test_a_text_with_brackets_is_shown_as_it_is(tmp_path, monkeypatch):
    only(monkeypatch, Finding("a", "b", "[red]x[/]"))
    assert "[red]x[/]" in ksim_here("doctor", folder=tmp_path).stdout

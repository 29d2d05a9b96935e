"""What docs/policies.md and the docstrings show works."""

import re
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

import ksim
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import structure
from ksim.specs.settings import EngineSettings

ROOT = Path(ksim.__file__).parents[1]
PAGE = (ROOT / "docs" / "policies.md").read_text()
PLUGINS = [(folder, name) for folder in ("scheduling.policies", "scheduling.admissions")
           for name in catalog.names(folder)]


def settings(toml: str) -> EngineSettings:
    return structure(EngineSettings, tomllib.loads(dedent(toml)))


def built(serve: EngineSettings) -> set[type]:
    return {type(plugin("scheduling.policies", serve.scheduling_policy)),
            type(plugin("scheduling.admissions", serve.admission))}


def test_the_code_on_the_page_runs(tmp_path, monkeypatch, capsys):
    """A block that begins with a file's name is that file."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if file := re.match(r"# (\w+)\.py\n", code):
            (tmp_path / f"{file[1]}.py").write_text(code)
            monkeypatch.setitem(sys.modules, file[1], None)  # so that it is forgotten afterwards
            del sys.modules[file[1]]
        else:
            exec(code, names)
    rates = [float(rate) for rate in re.findall(r"(\d+) tokens/s", capsys.readouterr().out)]
    assert len(rates) == 3 and rates == sorted(rates)


def test_the_settings_on_the_page_are_ones():
    (toml,) = re.findall(r"```toml\n\[serve\]\n(.*?)```", PAGE, re.DOTALL)
    assert built(settings(toml))


def test_a_policy_takes_twenty_lines():
    (code,) = re.findall(r"```python\n# mine.py\n(.*?)```", PAGE, re.DOTALL)
    assert code.count("\n") <= 20


@pytest.mark.parametrize(("folder", "name"), PLUGINS)
def test_each_is_on_the_page(folder, name):
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize(("folder", "name"), PLUGINS)
def test_each_says_what_it_is_for_and_shows_how_it_is_named(folder, name):
    shown = catalog.find(folder, name).__doc__
    example = "\n".join(re.findall(r"^ {8}(?=\w)(.* = .*)$", shown, re.MULTILINE))
    assert "Good for:" in shown
    assert catalog.find(folder, name) in built(settings(example))

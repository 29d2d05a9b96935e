"""`import ksim` costs nothing, and yet editors, type checkers and `help` see what is in it."""

import pydoc
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import jedi
import pytest
from mypy import api

import ksim
from ksim.foundation.errors import DISTRIBUTION

ROOT = Path(ksim.__file__).parents[1]
#: What a type checker has to read to know the public types; it passes over the rest.
READ = [f"ksim/{each}.py" for each in ("__init__", "scenario/scenario", "simulation/simulate", "scenario/layer",
                                       "views/result", "specs/settings", "compute/notation/product")]


def test_importing_it_loads_nothing_else():
    code = "import ksim, sys; print([name for name in sys.modules if name in ('numpy', 'attrs', 'pyarrow', 'simpy')])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True)
    assert shown.stdout == "[]\n"


def test_all_public_names_are_there_before_they_are_used():
    assert {*ksim.__all__} <= {*dir(ksim)} and "__version__" in dir(ksim)
    assert {*ksim.__all__} == {*ksim._HOMES, "LAYERS", "FENCES", "ROOMS"}
    for name, home in ksim._HOMES.items():
        assert getattr(ksim, name).__module__ == home
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = ksim.simulat  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_package():
    assert ksim.__version__ == version(DISTRIBUTION)


def test_type_checkers_see_the_types(tmp_path, monkeypatch):
    """And refuse a name that there is not."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(textwrap.dedent("""
        import ksim
        from ksim import Layer, Scenario, op, simulate

        scenario = Scenario.of({"model": "a"}).with_values({"seed": 1})
        reveal_type(scenario.serve)
        reveal_type(simulate(scenario))
        reveal_type(simulate(scenario).report())
        reveal_type(Layer([op("bsm,mF->bsF")], {"b": 1}))
        ksim.simulat(scenario)
    """))
    monkeypatch.chdir(ROOT)
    said, wrong, _ = api.run(["--strict", "--follow-imports=skip", "--no-incremental", "--cache-dir=/dev/null",
                              "--no-error-summary", "--config-file=", str(snippet), *READ])
    assert not wrong
    lines = [line.partition("snippet.py:")[2] for line in said.splitlines() if "snippet.py:" in line]
    assert [line.partition('"')[2].partition('"')[0] for line in lines[:4]] == [
        "ksim.specs.settings.EngineSettings", "ksim.views.result.Result", "str", "ksim.scenario.layer.Layer"]
    assert "Module has no attribute" in lines[4] and len(lines) == 5


@pytest.mark.parametrize(("code", "names"), [
    ("import ksim\nksim.", {"Scenario", "simulate", "Result", "Layer", "op"}),
    ("import ksim\nksim.simulate(ksim.Scenario.read('x')).", {"summary", "report", "requests", "to_pandas", "save"}),
])
def test_editors_complete_it(code, names):
    shown = jedi.Script(code, project=jedi.Project(str(ROOT))).complete()
    assert names <= {each.name for each in shown}


def test_help_begins_with_how_to_use_it():
    shown = pydoc.render_doc(ksim, renderer=vars(pydoc)["plaintext"])
    assert shown.index("simulate(scenario") < shown.index("PACKAGE CONTENTS") < shown.index("class Scenario")


def test_the_example_in_the_help_runs():
    (code,) = (part for part in ksim.__doc__.split("\n\n") if "print(Layer" in part)
    exec("from ksim import Layer, op\n" + textwrap.dedent(code), {})

"""`import ksim` costs nothing, and yet editors, type checkers and `help` see what is in it."""

import pydoc
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import assert_type

import pytest

import ksim
from ksim import Layer, Result, Scenario, op, simulate
from ksim.foundation.errors import DISTRIBUTION
from ksim.specs.settings import EngineSettings

ROOT = Path(ksim.__file__).parents[1]


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


def test_type_checkers_see_the_types():
    """mypy checks it in `make lint`, which also refuses the name above that there is not."""
    scenario = Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "workload": {"synthetic": {
        "count": 1, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 9},
        "output": {"kind": "fixed", "value": 1}}}}).with_values({"seed": 1})
    assert_type(scenario.serve, EngineSettings)
    assert_type(simulate(scenario), Result)
    assert_type(simulate(scenario).report(), str)
    assert_type(Layer([op("bsm,mF->bsF")], {"b": 1}), Layer)


@pytest.mark.parametrize(("code", "names"), [
    ("import ksim\nksim.", {"Scenario", "simulate", "Result", "Layer", "op"}),
    ("import ksim\nksim.simulate(ksim.Scenario.read('x')).", {"summary", "report", "requests", "to_pandas", "save"}),
])
def test_editors_complete_it(code, names):
    import jedi

    shown = jedi.Script(code, project=jedi.Project(str(ROOT))).complete()
    assert names <= {each.name for each in shown}


def test_help_begins_with_how_to_use_it():
    shown = pydoc.render_doc(ksim, renderer=vars(pydoc)["plaintext"])
    assert shown.index("simulate(scenario") < shown.index("PACKAGE CONTENTS") < shown.index("class Scenario")


def test_the_example_in_the_help_runs():
    (code,) = (part for part in ksim.__doc__.split("\n\n") if "print(Layer" in part)
    exec("from ksim import Layer, op\n" + textwrap.dedent(code), {})

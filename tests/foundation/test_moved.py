"""Modules can be imported from where they were, with a warning."""

import importlib
import subprocess
import sys

import pytest

from ksim.foundation.moved import MOVED, RENAMED, place_of

pytestmark = pytest.mark.filterwarnings("ignore:ksim.*works until:FutureWarning")


@pytest.mark.parametrize("name", MOVED)
def test_old_names_of_modules_lead_to_the_new_ones(name, monkeypatch):
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(FutureWarning, match=f"{MOVED[name]} now"):
        old = importlib.import_module(name)
    new = importlib.import_module(MOVED[name])
    for public in (known for known in vars(new) if not known.startswith("_")):
        assert getattr(old, public) is getattr(new, public)


@pytest.mark.parametrize(("module", "old", "new"), [
    (module, old, new) for module, names in RENAMED.items() for old, new in names.items()])
def test_renamed_objects_exist(module, old, new):
    home, _, name = new.rpartition(":")
    assert hasattr(importlib.import_module(home or module), name)


def test_an_object_is_found_in_the_module_that_it_went_to(monkeypatch):
    monkeypatch.delitem(sys.modules, "ksim.studies.lookup", raising=False)
    with pytest.warns(FutureWarning, match=r"ksim.simulation.hardware now"):
        old = importlib.import_module("ksim.studies.lookup")
    assert old.model_of is importlib.import_module("ksim.simulation.models").model_of


def test_modules_that_stayed_have_no_other_place():
    assert place_of("ksim.scheduling.job") is None
    assert place_of("ksim.runtime.governors.slack") == "ksim.engine.governors.slack"


def test_a_plug_in_written_for_the_old_paths_still_runs(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ksim.cost.oracles.roofline import Roofline\nfrom ksim.memory.cache import Cache\n"
        "from ksim.oracles.roofline import Roofline as New\nassert Roofline is New\n")
    done = subprocess.run([sys.executable, "-W", "always", "-c", "import mine"], cwd=tmp_path, capture_output=True,
                          text=True, check=True)
    assert "ksim.cost.oracles.roofline is ksim.oracles.roofline now" in done.stderr


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError), pytest.warns(FutureWarning):
        importlib.import_module("ksim.memory.nowhere")

"""Names to plug-ins and data files."""

import pytest

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.foundation.rng import stream


def test_the_folder_is_the_registry():
    assert "ring" in catalog.names("network.collectives")
    assert catalog.find("network.collectives", "ring").__name__ == "Ring"
    assert catalog.load("gpus", "h200")["sms"] == 132


def test_a_module_and_its_object_are_named_with_a_colon(tmp_path, monkeypatch):
    (tmp_path / "outside.py").write_text("Thing = len\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert catalog.find("kv.cache.evictions", "outside:Thing") is len
    for name, problem in (("outside:Other", "has no Other"), ("missing_module:X", "cannot be imported"),
                          ("broken:X", "ZeroDivisionError")):
        with pytest.raises(ConfigError, match=problem):
            catalog.find("oracles", name)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="no policy named 'fcf'; did you mean 'fcfs'"):
        catalog.find("scheduling.policies", "fcf")
    with pytest.raises(UnknownName, match="no gpu named 'h2000'; did you mean 'h200'"):
        catalog.load("gpus", "h2000")


@pytest.mark.parametrize(("name", "content", "problem"), [
    ("a.toml", "x = [", "is not valid TOML"), ("a.json", "{", "is not valid JSON"),
    ("b.json", "[1]", "holds no table"), ("c.toml", None, "No such file"),
])
def test_a_file_that_is_no_table_is_named(tmp_path, name, content, problem):
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        catalog.load("gpus", str(tmp_path / name))


def test_streams_of_one_seed_are_independent_and_repeat():
    first, again, other = stream(1, "a").random(4), stream(1, "a").random(4), stream(1, "b").random(4)
    assert (first == again).all() and (first != other).all()

"""Scenario files: what they may say, and what is said of those that are wrong."""

import tomllib

import pytest

from ksim.foundation.errors import ConfigError, DataError
from ksim.scenario.scenario import Scenario, setting
from tests.scenario.tables import BURST, TABLE


def test_a_scenario_reads_back_as_it_was_written():
    scenario = Scenario.of({**TABLE, "oracle": {"name": "roofline", "compute": 0.7}, "slo": {"ttft": "200 ms"}})
    assert Scenario.of(tomllib.loads(scenario.to_toml())) == scenario
    assert scenario.slo.ttft == 0.2


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "s.toml").write_text('model = "mine.json"\ngpu = "h200"\n[workload.replay]\npath = "t.csv"\n')
    scenario = Scenario.read(tmp_path / "s.toml")
    assert scenario.model == str(tmp_path / "mine.json")
    assert scenario.workload.replay.path == tmp_path / "t.csv"


def test_all_files_that_a_scenario_names_are_relative_to_it(tmp_path):
    lengths = {"kind": "trace", "path": "t.csv"}
    table = {"model": "m.json", "gpu": "g.toml", "system": "s.toml", "host": "h.toml", "engine": "e.toml",
             "oracle": {"name": "measured", "path": "o.npz"},
             "workload": {"synthetic": {**BURST, "prompt": lengths, "output": lengths}}}
    scenario = Scenario.of(table, folder=tmp_path)
    assert [scenario.model, scenario.gpu, scenario.system, scenario.host, scenario.engine] == [
        str(tmp_path / name) for name in ("m.json", "g.toml", "s.toml", "h.toml", "e.toml")]
    assert scenario.oracle.options["path"] == str(tmp_path / "o.npz")
    synthetic = scenario.workload.synthetic
    assert [synthetic.prompt.path, synthetic.output.path] == [tmp_path / "t.csv"] * 2
    assert Scenario.of(TABLE, folder=tmp_path).gpu == "h200"


def test_values_can_be_set_by_dotted_keys():
    scenario = Scenario.of(TABLE).with_values({
        "serve.max_num_seqs": 64, "oracle": "roofline", "oracle.compute": 0.7, "gpu": "h100"})
    assert (scenario.serve.max_num_seqs, scenario.gpu) == (64, "h100")
    assert (scenario.oracle.name, scenario.oracle.options) == ("roofline", {"compute": 0.7})


def test_a_part_of_a_key_may_be_a_place_in_a_list():
    listed = Scenario.of({**TABLE, "oracle": {"name": "mine", "parts": [{"share": 0.5}, {"share": 0.25}, 3]}})
    changed = listed.with_values({"oracle.parts.1.share": 0.75, "oracle.parts.2": 4})
    assert changed.oracle.options["parts"] == [{"share": 0.5}, {"share": 0.75}, 4]
    assert listed.oracle.options["parts"] == [{"share": 0.5}, {"share": 0.25}, 3]
    for key, says in (("oracle.parts.3", "3 is no place in a list of 3; the first is 0"),
                      ("oracle.parts.share.0", "share is no place in a list"), ("oracle.parts.2.x", "2 is a value")):
        with pytest.raises(ConfigError, match=says):
            listed.with_values({key: 1})


@pytest.mark.parametrize(("text", "value"), [
    ("serve.max_num_seqs=64", 64), ("gpu=h100", "h100"), ("serve.async_scheduling=false", False),
    ("serve.gpu_memory_utilization=0.8", 0.8), ("host='default'", "default"),
])
def test_settings_are_toml_or_else_text(text, value):
    assert setting(text) == (text.partition("=")[0], value)


def test_a_setting_without_a_value_is_refused():
    with pytest.raises(ConfigError, match="expected key=value"):
        setting("seed")


@pytest.mark.parametrize(("change", "message"), [
    ({"modle": "x"}, r"modle: unknown key; did you mean 'model'\?"),
    ({"serve": {"max_num_seq": 4}}, r"serve.max_num_seq: unknown key; did you mean 'max_num_seqs'\?"),
    ({"serve": {"max_num_seqs": "4"}}, "serve.max_num_seqs: expected a whole number, not '4'"),
    ({"serve": {"max_num_seqs": -4}}, "'max_num_seqs' must be > 0"),
    ({"serve": {"gpu_memory_utilization": 1.5}}, "'gpu_memory_utilization' must be <= 1"),
    ({"serve": {"quantization": "fp7"}}, "'quantization' must be in"),
    ({"detail": "atoms"}, "'detail' must be in"),
    ({"seed": 1.5}, "seed: expected a whole number"),
    ({"slo": {"ttft": "fast"}}, "'fast' is not a quantity"),
    ({"gpu": None}, "name a gpu or a system"),
    ({"workload": {}}, "a workload is either replay or synthetic"),
    ({"workload": {"synthetic": {**BURST, "prompt": {"kind": "fix", "value": 1}}}},
     "workload.synthetic.prompt: expected a table with kind = one of fixed, .*none called 'fix'"),
    ({"workload": {"synthetic": {**BURST, "prompt": 7}}}, "workload.synthetic.prompt: expected a table with kind"),
    ({"workload": {"synthetic": {**BURST, "prompt": {"kind": "fixed", "valu": 1}}}}, "prompt.valu: unknown key"),
    ({"oracle": 3}, "oracle: expected a name, or a table with a name"),
])
def test_an_error_names_the_wrong_key(change, message):
    table = {key: value for key, value in {**TABLE, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        Scenario.of(table, "s.toml")


def test_an_error_names_a_missing_key():
    with pytest.raises(ConfigError, match="s.toml: model: is missing"):
        Scenario.of({"gpu": "h200", "workload": {"synthetic": BURST}}, "s.toml")


@pytest.mark.parametrize(("content", "message"), [
    (b"model = ", "is not valid TOML"), (b"\xff\xfe\x00\x01", "is not text in UTF-8"), (None, "No such file"),
])
def test_an_error_names_a_file_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "s.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Scenario.read(path)

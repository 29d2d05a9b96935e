"""What `ksim new` writes."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from ksim.foundation import catalog
from ksim.foundation.errors import DoesNotFit
from ksim.foundation.keys import keys
from ksim.scenario.scenario import Scenario, merged
from ksim.scenario.schema import FILE, schema, starter, summary, toml
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import simulate
from ksim.specs.settings import EngineSettings
from tests.cli.command import ksim_here

VALIDATOR = Draft7Validator(schema())
TEXT = starter("llama-3.2-1b", "h200")
COMMENTED = re.findall(r"^#(\w+ = .*)$", TEXT, re.MULTILINE)


def test_the_template_is_valid_by_the_schema_that_it_names():
    first, _, rest = TEXT.partition("\n")
    assert first == f"#:schema {FILE.as_uri()}" and FILE.exists()
    assert [*VALIDATOR.iter_errors(tomllib.loads(rest))] == []


def test_the_template_has_every_engine_setting():
    section = TEXT.partition("[serve]\n")[2].partition("\n[")[0]
    assert re.findall(r"^#?(\w+) = ", section, re.MULTILINE) == [key.name for key in keys(EngineSettings)]


@pytest.mark.parametrize("line", COMMENTED)
def test_an_uncommented_line_of_the_template_is_valid(line):
    text = TEXT.replace(f"\n#{line}\n", f"\n{line}\n", 1)
    replay, _, pool = TEXT.partition("#[workload.replay]")[2].partition("#[pools.NAME]")
    if line in replay and TEXT.count(f"#{line}\n") == 1:
        text = text.replace("#[workload.replay]", "[workload.replay]").replace('#path = "', 'path = "')
    if line in pool and TEXT.count(f"#{line}\n") == 1:
        text = text.replace("#[pools.NAME]", "[pools.NAME]").replace('#role = "', 'role = "')
    assert [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))] == []


def test_the_template_shows_derived_defaults():
    assert "\n#max_num_seqs = 1024\n" in TEXT and "\n#max_num_batched_tokens = 8192\n" in TEXT
    assert "\n#max_num_seqs = 256\n" in starter("llama-3.2-1b", "l4")


@pytest.mark.parametrize(("model", "gpu", "ranks"), [("llama-3.1-70b", "h100", 4), ("llama-3.1-8b", "h200", 1)])
def test_the_template_takes_the_fewest_gpus_on_which_the_model_fits(model, gpu, ranks):
    assert f"\ntensor_parallel_size = {ranks}\n" in starter(model, gpu)
    assert f"\ntensor_parallel_size = {2 * ranks}\n" in starter(model, gpu, 2 * ranks)


def test_a_template_with_too_few_gpus_is_refused():
    with pytest.raises(DoesNotFit, match="tensor_parallel_size = 2 would fit"):
        starter("llama-3.1-70b", "h100", 1)


def test_a_context_that_does_not_fit_is_cut():
    assert "\n#max_model_len = 131072\n" in TEXT
    serve = tomllib.loads(starter("kimi-k2", "h200"))["serve"]
    assert serve == {"tensor_parallel_size": 8, "max_model_len": 16384}


def test_requests_are_no_longer_than_the_model_takes(tmp_path):
    config = json.loads((FILE.parent / "models" / "llama-3.2-1b.json").read_text())
    path = tmp_path / "short.json"
    path.write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    assert tomllib.loads(starter(str(path), "h200"))["workload"]["synthetic"]["max_tokens"] == 2048


def test_the_template_runs_as_it_is():
    few = Scenario.of(tomllib.loads(TEXT)).with_values({"workload.synthetic.count": 20})
    assert simulate(few).summary["completed"] == 20


def test_ksim_new_writes_the_template_and_overwrites_only_by_force(tmp_path):
    assert ksim_here("new", "--model", "qwen3-8b", "--gpu", "l40s", folder=tmp_path).status == 0
    made = tmp_path / "scenario.toml"
    assert Scenario.read(made).model == "qwen3-8b"
    made.write_text("mine")
    refused = ksim_here("new", folder=tmp_path)
    assert refused.status == 1 and "--force" in refused.stderr and made.read_text() == "mine"
    assert ksim_here("new", "--force", folder=tmp_path).status == 0
    assert Scenario.read(made).model == "llama-3.1-8b"


@pytest.mark.parametrize("name", catalog.entries("templates"))
def test_every_template_is_valid_has_all_that_its_file_says_and_runs(name):
    table = tomllib.loads(starter("llama-3.2-1b", "h200", template=name))
    assert [*VALIDATOR.iter_errors(table)] == []
    said = catalog.load("templates", name)
    assert merged(table, said) == table and summary(name).endswith(".")
    few = Scenario.of(table).with_values({"workload.synthetic.count": 6})
    assert simulate(few).summary["completed"] >= 6


def test_a_template_takes_as_many_nodes_as_its_engines_need():
    table = tomllib.loads(starter("kimi-k2", "h200", template="pd"))
    assert (table["nodes"], table["serve"]["tensor_parallel_size"]) == (2, 8)
    Fleet.of(Scenario.of(table)).check_memory()


def test_the_path_of_a_model_is_from_where_the_scenario_is(tmp_path):
    (tmp_path / "sub").mkdir()
    config = Path(FILE.parent / "models" / "llama-3.2-1b.json").read_text()
    (tmp_path / "config.json").write_text(config)
    assert ksim_here("new", "sub/s.toml", "--model", "config.json", folder=tmp_path).status == 0
    assert 'model = "../config.json"' in (tmp_path / "sub" / "s.toml").read_text()
    assert Scenario.read(tmp_path / "sub" / "s.toml").model == str(tmp_path / "config.json")


def test_toml_values_are_on_one_line():
    assert toml({"a": [1, 2.5, "x"], "b": {"c": True}}) == '{a = [1, 2.5, "x"], b = {c = true}}'

"""Adapters by the folder that PEFT saved them in."""

import json

import pytest

from ksim.foundation.errors import ConfigError, DataError
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario


def read(folder, entry=None, **config):
    """The adapter of a scenario in *folder* that names one with this *config* by its path."""
    (folder / "sql").mkdir(exist_ok=True)
    (folder / "sql" / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    module = {"name": "sql", "path": "sql", **(entry or {})}
    serve = {"enable_lora": True, "max_lora_rank": 64, "lora_modules": [module]}
    table = {"model": "llama-3.2-1b", "gpu": "h200", "serve": serve, "workload": ANY_WORKLOAD}
    made = Scenario.of(table, folder=folder)
    return made, made.serve.lora_modules[0]


def test_rank_and_modules_are_read(tmp_path):
    made, module = read(tmp_path, r=32, target_modules=["q_proj", "model.layers.0.self_attn.v_proj"], lora_alpha=64)
    assert (module.rank, module.target_modules, module.path) == (32, ("q_proj", "v_proj"), None)
    assert "path" not in made.to_toml().partition("lora_modules")[2].partition("]")[0]


def test_what_the_scenario_says_itself_goes_first(tmp_path):
    assert read(tmp_path, {"rank": 8}, r=32, target_modules="all-linear")[1].rank == 8
    assert read(tmp_path, r=32, target_modules="all-linear")[1].target_modules is None


@pytest.mark.parametrize(("config", "says"), [
    ({"r": 8, "use_dora": True}, "use_dora: is True, and vLLM refuses"),
    ({"r": 8, "rank_pattern": {"q_proj": 4}}, "rank_pattern: gives modules ranks of their own"),
    ({"r": 8, "target_modules": ".*(q_proj)$"}, "target_modules: is '.*; ksim reads lists of names"),
    ({"r": 128}, "adapter 'sql' of rank 128 is beyond max_lora_rank = 64"),
    ({"r": "eight"}, "expected a whole number"),
])
def test_what_vllm_or_ksim_cannot_serve_is_refused(tmp_path, config, says):
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, **config)


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere.adapter_config.json"):
        read(tmp_path, {"path": "nowhere"}, r=8)

"""Which family a config.json is of, and what users read where it is of none."""

import json

import pytest

from ksim.compute.model import Config
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.scenario.models import lookalike, model_of, model_of_table
from ksim.scenario.scenario import Scenario
from tests.models import POPULAR
from tests.scenario.tables import TABLE

LLAMA = catalog.load("models", "llama-3.2-1b")


@pytest.mark.parametrize(("changes", "said"), [
    ({"model_type": "olmo"}, "by its keys it looks like llama: set model_type to 'llama' in a copy to try"),
    ({"model_type": "olmoe9", "num_experts": 8, "moe_intermediate_size": 64}, "it looks like qwen3_moe"),
    ({"model_type": "deepseek_v9", "kv_lora_rank": 512, "q_lora_rank": 1536}, "it looks like deepseek_v3"),
    ({"model_type": "ernie9", "moe_num_experts": 8}, "it looks like ernie4_5_moe"),
    ({"model_type": "gpt_old", "n_embd": 64, "n_layer": 2, "n_head": 4}, "it looks like gpt2"),
    ({"model_type": "lama", "hidden_act": "relu2"}, "the nearest by name is 'llama'"),
    ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "its text_config is of 'llama': take that part"),
    ({"model_type": "mamba2", "state_size": 128}, "mamba2' is no family that ksim knows; to add it"),
    ({"model_type": None}, "model_type: is missing, so this is no config.json of Hugging Face's"),
    ({"model_type": 3}, "model_type: expected a text, not 3"),
])
def test_a_family_that_ksim_lacks_is_answered_with_what_to_do(tmp_path, changes, said):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    with pytest.raises(ConfigError) as caught:
        model_of(str(tmp_path))
    assert str(caught.value).startswith(str(tmp_path)) and said in str(caught.value)
    assert changes["model_type"] in (None, 3) or "docs/plugins.md, A model family" in str(caught.value)


@pytest.mark.parametrize(("changes", "said"), [
    ({"model_type": "bert"}, "model_type: 'bert' encodes, embeds or classifies; ksim serves decoders that generate"),
    ({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"]}, "architectures: 'RobertaForMaskedLM' encodes"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "architectures: 'LlamaForSequenceClassification' encodes"),
    ({"architectures": ["MistralModel"]}, "architectures: 'MistralModel' encodes"),
])
def test_models_that_generate_nothing_are_refused(changes, said):
    with pytest.raises(ConfigError, match=f"mine: {said}"):
        model_of_table("mine", {**LLAMA, **changes})


@pytest.mark.parametrize(("changes", "said"), [
    ({"use_moe_lora": True}, "mine: use_moe_lora: ksim does not know what True changes in a model of this family"),
    ({"num_experts": 8}, "mine: num_experts: ksim does not know what 8 changes"),
    ({"num_key_value_head": 4}, "did you mean 'num_key_value_heads'?"),
    ({"clip_qkv": 8.0, "num_key_value_head": 4, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "by": [1]}},
     "mine: ksim does not know what 3 keys change in a model of this family: clip_qkv = 8.0, num_key_value_head = 4"
     " (did you mean 'num_key_value_heads'?), rope_scaling: by = [1]; leave those that"),
    ({"clip_qkv": 8.0}, "mine: clip_qkv: ksim does not know what 8.0 changes"),
    ({"torch_dtype": "float8_e4m3fn"}, "mine: torch_dtype"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "by_layer": [1]}}, "mine: rope_scaling: by_layer: ksim"),
    ({"rope_scaling": {"rope_type": "fancy"}}, "mine: rope_scaling: rope_type: 'fancy' is none of default, dynamic"),
    ({"rope_parameters": {"sliding": 3}}, "mine: rope_parameters: sliding: ksim does not know"),
    ({"quantization_config": {"quant_method": "fp8", "rotation": "hadamard"}}, "mine: quantization_config: rotation"),
    ({"vision_config": {"depth": 12}}, "mine: vision_config: ksim does not know what {'depth': 12} changes"),
])
def test_what_a_config_says_and_ksim_does_not_know_is_refused(changes, said):
    with pytest.raises(ConfigError) as caught:
        model_of_table("mine", {**LLAMA, **changes})
    assert said in str(caught.value)


@pytest.mark.parametrize("changes", [
    {"clip_qkv": None}, {"unheard_of": None}, {"some_token_id": 3}, {"torch_dtype": "float16"}, {"alibi": False},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}}])
def test_what_changes_no_cost_may_be_said(changes):
    assert model_of_table("mine", {**LLAMA, **changes}).decoder == model_of_table("mine", LLAMA).decoder


def test_a_family_of_ones_own_may_leave_keys_unread(tmp_path, monkeypatch):
    (tmp_path / "careless.py").write_text("from ksim.compute.architectures.llama import llama\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert model_of_table("mine", {**LLAMA, "model_type": "careless:llama", "num_experts": 8}).layers == 16


@pytest.mark.parametrize("name", catalog.entries("models"))
def test_the_keys_of_a_known_model_tell_a_family_like_its_own(name):
    table = catalog.load("models", name)
    kind = lookalike(Config(name, table))
    either = {"nemotron_h", "granitemoehybrid"}
    mixture = {"ernie4_5_moe", "qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v3", "glm_moe_dsa", "qwen3_next", "jamba"}
    assert not kind or kind in either or (kind in mixture) == bool(model_of(name).decoder.top_k)


def test_a_family_of_ones_own_is_a_function(tmp_path, monkeypatch):
    (tmp_path / "mine_family.py").write_text("from ksim.compute.architectures.llama import llama as olmo2\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": "mine_family:olmo2"}))
    assert model_of(str(tmp_path)).parameters() == model_of("llama-3.2-1b").parameters()


def test_a_folder_with_a_config_is_a_model_beside_the_scenario_too(tmp_path, monkeypatch):
    folder = tmp_path / "Llama-3.1-mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    read = Scenario.of({**TABLE, "model": folder.name}, folder=tmp_path)
    assert read.model == str(folder) and model_of(read.model).layers == 16
    monkeypatch.chdir(tmp_path)
    assert model_of(folder.name).layers == model_of(f"./{folder.name}/").layers == 16


def test_a_name_of_the_catalogue_comes_before_a_folder(tmp_path):
    (tmp_path / "llama-3.1-8b").mkdir()
    assert Scenario.of({**TABLE, "model": "llama-3.1-8b"}, folder=tmp_path).model == "llama-3.1-8b"


@pytest.mark.parametrize(("name", "error", "said"), [
    ("meta-llama/Llama-3.1-8B", DataError, "is no model: there is no such path; name a .json file or a folder with"),
    ("../models/llama-3.1-8b", DataError, "there is no such path"), ("", UnknownName, "no model named ''"),
    ("lama-3.1-8b", UnknownName, "did you mean 'llama-3.1-8b'")])
def test_names_of_no_model_are_refused(name, error, said):
    with pytest.raises(error, match=said):
        model_of(name)


def test_deepseek_v4_as_transformers_saves_it_is_the_checkpoint_s():
    """transformers, configuration_deepseek_v4.py: types of layers for ratios, and angles of both kinds of layers."""
    published = POPULAR["deepseek-ai/DeepSeek-V4-Flash"]["config"]
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    old = ("compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling", "rope_theta")
    saved = {key: value for key, value in published.items() if key not in old} | {
        "layer_types": [kinds[ratio] for ratio in published["compress_ratios"][:43]],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40, "partial_rotary_factor": 0.125,
        "rope_parameters": {"main": {"rope_type": "default"}, "compress": {**published["rope_scaling"]}}}
    assert model_of_table("saved", saved).decoder == model_of_table("published", published).decoder

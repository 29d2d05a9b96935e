"""Hugging Face's names mean models of the catalogue, by rules and a table, or are refused with what to do."""

import pytest

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scenario.models import named


def test_each_model_of_the_catalogue_is_meant_by_its_own_names():
    for name in catalog.entries("models"):
        full = catalog.load("models", name).get("_name_or_path", name)
        assert named(name, "here").name == named(full, "here").name == named(full.upper(), "here").name == name
        assert not named(full, "here").assumed and not named(full, "here").serve


def test_the_table_names_models_that_there_are():
    table = catalog.load("names", "models")
    assert {*table["names"].values()} <= {*catalog.entries("models")}
    assert all(named(f"someone/{name}", "here").name == model for name, model in table["names"].items())


@pytest.mark.parametrize(("text", "name", "serve"), [
    ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b", {}),
    ("/models/DeepSeek-R1-0528", "deepseek-r1", {}),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b", {"quantization": "fp8_block"}),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", {"quantization": "fp8"}),
    ("meta-llama/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b", {"quantization": "fp8", "unquantized": ["attention"]}),
    ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", {"quantization": "awq"}),
    ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b", {"quantization": "awq"}),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", {"quantization": "gptq"}),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", {"quantization": "int8_w8a16_g128_zp"}),
    ("TheBloke/Llama-2-7B-Chat-GPTQ-4bit-32g-actorder_True", "llama-2-7b",
     {"quantization": "int4_w4a16_g32_zp_act_order"}),
    ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w4a16", "qwen2.5-7b", {"quantization": "int4_w4a16_g128"}),
    ("neuralmagic/Llama-3.1-8B-Instruct-W4A16-G64", "llama-3.1-8b", {"quantization": "int4_w4a16_g64"}),
    ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a16", "qwen2.5-7b", {"quantization": "int8_w8a16_channel"}),
    ("RedHatAI/Llama-3.1-8B-quantized.w8a8", "llama-3.1-8b", {"quantization": "int8_w8a8"}),
    ("RedHatAI/Llama-3.1-8B-FP8-dynamic", "llama-3.1-8b", {"quantization": "fp8"}),
    ("unsloth/Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b", {"quantization": "bitsandbytes"}),
    ("Intel/Qwen3-8B-int4-AutoRound", "qwen3-8b", {"quantization": "int4_w4a16_g128"}),
    ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1", {"quantization": "nvfp4", "unquantized": ["attention"]}),
    ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "llama-3.3-70b", {"quantization": "nvfp4"}),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b", {}),
    ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3.1-8b", {"max_model_len": 8192}),
])
def test_endings_say_how_weights_are_stored(text, name, serve):
    model = named(text, "here")
    assert (model.name, dict(model.serve)) == (name, serve)
    assert model.assumed


@pytest.mark.parametrize(("text", "says"), [
    ("facebook/opt-125m", "huggingface.co/facebook/opt-125m/raw/main/config.json"),
    ("llama-3.1-80b", "near by name are"), ("TheBloke/Llama-2-7B-GGUF", "in that format"),
    ("", "download its config.json"), ("mlx-community/Llama-3.1-8B-Instruct-4bit", "in that format"),
])
def test_other_names_are_refused_with_what_to_do(text, says):
    with pytest.raises(ConfigError) as refused:
        named(text, "here")
    assert says in str(refused.value) and "--model" in str(refused.value)


def test_paths_pass_through(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert named("config.json", "here", tmp_path).name == str(tmp_path / "config.json")
    assert named(str(tmp_path), "here").name == str(tmp_path)

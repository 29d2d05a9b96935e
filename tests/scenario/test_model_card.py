"""What a model is made of and where it fits: as published, and as engines find when they start."""

import json

import pytest

from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.foundation.units import DType
from ksim.scenario.defaults import Defaults, Deployment
from ksim.scenario.hardware import engine_of, gpu_of, system_of
from ksim.scenario.model_card import ModelCard, fits_on
from ksim.scenario.models import model_of
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.scenario.sizing import kv_blocks, layout_of, memory, shards_of
from ksim.specs.configs import SpeculativeConfig
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Precision, Shard
from tests.cli.command import ksim_here

NAMES = catalog.entries("models")
VLLM = engine_of("vllm-0.33")
#: Billions of parameters, all and active, as the model cards say: huggingface.co/deepseek-ai/DeepSeek-V3 (without its
#: module for multi-token prediction), google/gemma-2-*, openai/gpt-oss-* (active without the embedding, with the head),
#: moonshotai/Kimi-K2-Instruct, meta-llama/*, mistralai/*, MiniMaxAI/MiniMax-M2, Qwen/*.
PUBLISHED = {
    "deepseek-v3": (671, 37), "deepseek-r1": (671, 37), "gemma-2-27b": (27.2, 27.2), "gemma-2-9b": (9.24, 9.24),
    "gemma-2-2b": (2.61, 2.61), "gpt-oss-120b": (116.8, 5.13), "gpt-oss-20b": (20.9, 3.61), "kimi-k2": (1000, 32),
    "llama-3.1-70b": (70.6, 70.6), "llama-3.1-8b": (8.03, 8.03), "llama-3.2-1b": (1.24, 1.24),
    "llama-3.2-3b": (3.21, 3.21), "mistral-7b": (7.25, 7.25), "mixtral-8x7b": (46.7, 12.9), "phi-4": (14.7, 14.7),
    "minimax-m2": (230, 10), "qwen2.5-32b": (32.8, 32.8), "qwen2.5-7b": (7.62, 7.62), "qwen3-0.6b": (0.6, 0.6),
    "qwen3-1.7b": (1.7, 1.7), "qwen3-4b": (4.0, 4.0), "qwen3-8b": (8.2, 8.2), "qwen3-14b": (14.8, 14.8),
    "qwen3-32b": (32.8, 32.8), "qwen3-30b-a3b": (30.5, 3.3), "qwen3-235b-a22b": (235, 22),
    "qwen3-next-80b-a3b": (80, 3), "qwen3.5-397b-a17b": (397, 17), "glm-5": (744, 40)}
#: Those whose cards count active parameters without what is only looked up, or round by more than 3 %.
ROUNDED = {"minimax-m2": 0.11, "qwen3-next-80b-a3b": 0.3, "glm-5": 0.05, "kimi-k2": 0.03,
           "qwen3.5-397b-a17b": 0.03}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_that_are_published(name):
    model, (total, active) = model_of(name), PUBLISHED[name]
    assert model.parameters() / 1e9 == pytest.approx(total, rel=0.03)
    looked_up = sum(part.parameters for part in model.parts(Shard()) if part.name == "embedding")
    found = model.active_parameters() - (looked_up if name.startswith("gpt-oss") else 0)
    assert found / 1e9 == pytest.approx(active, rel=ROUNDED.get(name, 0.02))


@pytest.mark.parametrize("name", NAMES)
def test_parts_add_up_to_the_model(name):
    model, shard = model_of(name), Shard(precision=Precision(DType.FP8, DType.FP8, DType.FP8, ("attention",)))
    found = model.parts(shard)
    assert sum(part.parameters for part in found) == model.parameters()
    assert sum(part.active for part in found) == model.active_parameters()
    assert sum(part.bytes for part in found) == model.weights(shard)
    assert "other" not in {part.name for part in found}
    layers = model.attention_kinds(shard)
    assert sum(kind.layers for kind in layers) == len(model.cache_by_layer(shard))  # some have two kinds, others none
    assert sum(kind.bytes_per_token for kind in layers) == model.cache_per_token(shard)
    assert sum(kind.bytes_per_sequence for kind in layers) == model.state_per_sequence(shard)


@pytest.mark.parametrize(("name", "expected"), [
    ("llama-3.1-8b", {"full attention": 32}), ("gemma-2-2b", {"sliding window of 4096": 13, "full attention": 13}),
    ("deepseek-v3", {"latent attention": 61}), ("glm-5", {"sparse latent attention": 78}),
    ("qwen3-next-80b-a3b", {"linear attention": 36, "full attention": 12}),
    ("falcon-h1-7b", {"Mamba-2": 44, "full attention": 44}), ("jamba-mini-1.6", {"Mamba": 28, "full attention": 4}),
    ("nemotron-nano-9b-v2", {"Mamba-2": 27, "full attention": 4}),
    ("minimax-text-01", {"lightning attention": 70, "full attention": 10})])
def test_layers_are_told_apart_by_how_they_attend(name, expected):
    assert {kind.name: kind.layers for kind in model_of(name).attention_kinds(Shard())} == expected


@pytest.mark.parametrize(("name", "gpus", "settings"), [
    ("llama-3.1-8b", ["h200", "l4"], {}), ("llama-3.1-8b", ["l4"], {"quantization": "fp8", "max_model_len": 8192}),
    ("qwen3-next-80b-a3b", ["l40s"], {"max_num_seqs": 64}),
    ("gpt-oss-120b", ["h100"], {"enable_expert_parallel": True})])
def test_what_fits_is_what_an_engine_finds_when_it_starts(name, gpus, settings):
    model = model_of(name)
    for fit in fits_on(gpus, model, EngineSettings(**settings), VLLM):
        asked = EngineSettings(tensor_parallel_size=fit.tensor, **settings)
        gpu = gpu_of(fit.gpu)
        serve = Defaults(asked, VLLM, model, gpu).complete()
        try:
            shards = shards_of(model, serve)
            blocks = kv_blocks(model, shards, gpu, serve, system_of(fit.gpu))
        except DoesNotFit:
            assert not fit.fits
        else:
            layout = layout_of([memory(model, shard, gpu, serve) for shard in shards], serve)
            assert fit.fits and fit.tokens == layout.room(blocks, serve.max_model_len)
            assert fit.sequences == fit.tokens // serve.max_model_len >= 1


def test_a_deployment_shards_its_model_likewise():
    table = {"model": "qwen3-30b-a3b", "gpu": "h200", "workload": ANY_WORKLOAD,
             "serve": {"data_parallel_size": 2, "pipeline_parallel_size": 2}}
    deployment = Deployment.of(Scenario.of(table))
    assert deployment.shards == shards_of(deployment.model, deployment.serve, deployment.routing)


@pytest.mark.parametrize(("name", "gpus", "ways", "why"), [
    ("llama-3.1-8b", ["l4"], [1], "KV cache has room for 31,328 tokens, fewer than max_model_len"),
    ("llama-3.1-70b", ["l4"], [1], "weights exceed the 19.8 GiB that can be used"),
    ("llama-3.1-70b", ["h200"], [3], "tensor_parallel_size: 3 does not divide 64 attention heads"),
    ("llama-3.1-70b", ["h200"], [16], "HGX H200 has 8 GPUs"),
    ("deepseek-v3", ["a100-80g"], [8], "weights exceed the"),
    ("gpt-oss-20b", ["t4"], [1], "vLLM has no MXFP4 on a T4"),
    ("deepseek-v3", ["b200"], [4], "0.2 GiB short of weights, activations and 0.8 GiB for CUDA")])
def test_what_does_not_fit_says_why(name, gpus, ways, why):
    (fit,) = fits_on(gpus, model_of(name), EngineSettings(gpu_memory_utilization=0.9), VLLM, ways)
    assert why in fit.why and fit.sequences == 0


def test_a_card_is_the_same_as_keys_and_values(tmp_path):
    table = ModelCard.of("gpt-oss-20b", ["h100"], EngineSettings(), "vllm-0.33", [1]).table()
    assert table == json.loads(ksim_here("model", "gpt-oss-20b", "--gpu", "h100", "-tp", "1", "--json",
                                         folder=tmp_path).stdout)
    assert (table["weight_format"], table["parts_in_bf16"][0], table["experts_per_token"]) == ("mxfp4", "attention", 4)
    assert table["fits"][0]["fits"] and table["fits"][0]["tokens"] > 500_000


def test_the_page_shows_states_formats_and_what_fits(tmp_path):
    shown = ksim_here("model", "qwen3-next-80b-a3b", "--gpu", "h200,h100", "-q", "fp8", "--max-model-len", "8192",
                      folder=tmp_path).stdout
    for words in ("79.67 B parameters, 3.87 B of them active: 10 of 512 experts a token", "weights in fp8",
                  "states: 37.7 MiB a sequence", "36 layers of linear attention", "sequences of 8,192 tokens"):
        assert words in shown
    assert shown.count("h200") == 4


def test_settings_that_no_gpu_can_have_are_an_error():
    with pytest.raises(ConfigError, match="llama-3.1-8b has no experts"):
        ModelCard.of("llama-3.1-8b", [], EngineSettings(enable_expert_parallel=True), "vllm-0.33")


def test_modules_and_drafters_are_said():
    card = ModelCard.of("deepseek-v3", ["h200"], EngineSettings(speculative_config=SpeculativeConfig(
        1, method="mtp", acceptance=Choice("geometric", {"rate": 0.8}))), "vllm-0.33", [8]).table()
    plain = ModelCard.of("deepseek-v3", ["h200"], EngineSettings(), "vllm-0.33", [8]).table()
    assert card["mtp_modules"] == plain["mtp_modules"] == 1 and plain["drafter"] is None
    assert card["drafter"]["parameters"] == card["mtp_parameters"] == plain["mtp_parameters"]
    assert card["drafter"]["kv_cache_bytes_per_token"] == pytest.approx(plain["kv_cache_bytes_per_token"] / 61)
    share = card["drafter"]["weight_bytes"] / 8
    assert share < card["fits"][0]["weights"] - plain["fits"][0]["weights"] < 1.2 * share  # each has the projection


def test_a_card_shows_what_slots_for_adapters_take():
    plain, enabled = (ModelCard.of("llama-3.2-1b", ["h200"], EngineSettings(enable_lora=lora), "vllm-0.33", [1])
                      for lora in (False, True))
    assert "adapter_slot_bytes" not in plain.table()
    assert enabled.table()["adapter_slot_bytes"] == enabled.fits[0].weights - plain.fits[0].weights > 0
    assert enabled.fits[0].tokens < plain.fits[0].tokens

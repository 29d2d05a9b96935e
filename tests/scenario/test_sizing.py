"""What vLLM derives at its start: KV blocks and the settings that are not given."""

import json
from pathlib import Path

import pytest

from ksim.foundation.errors import ConfigError, DoesNotFit
from ksim.scenario.defaults import Defaults, Deployment
from ksim.scenario.hardware import engine_of, gpu_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.scenario.sizing import limits
from ksim.specs.settings import EngineSettings
from tests.scenario.tables import TABLE

H200 = Path(__file__).parents[3] / "shared" / "data" / "h200"


def derived(settings, model, gpu, engine="vllm-0.33"):
    return Defaults(settings, engine_of(engine), model, gpu).complete()


def blocks(**changes):
    deployment = Deployment.of(Scenario.of({**TABLE, **changes}))
    return deployment.kv_blocks


@pytest.mark.parametrize(("gpu", "tokens", "sequences"), [
    ("h200", 8192, 1024), ("h100", 8192, 1024), ("a100-80g", 2048, 256), ("l4", 2048, 256), ("b200", 16384, 1024),
])
def test_budget_and_sequences_follow_from_the_gpu(gpu, tokens, sequences):
    """vLLM 0.33's API server: by GPU memory, with the A100 as an exception."""
    settings = derived(EngineSettings(), model_of("llama-3.1-8b"), gpu_of(gpu))
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, sequences)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.skipif(not H200.exists(), reason="needs the measured H200 runs under ../shared/data/h200")
def test_kv_blocks_are_those_of_a_real_engine(model):
    """Within 1.5 % of what vLLM 0.22 reported on an H200 with the same settings."""
    measured = json.loads((H200 / f"engine_{model}.json").read_text())
    serve = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 16384,
             "gpu_memory_utilization": 0.9}
    assert blocks(model=model, serve=serve) == pytest.approx(measured["num_gpu_blocks"], rel=0.015)


def test_blocks_are_what_memory_leaves_beside_weights():
    """Half the weights a GPU, and half the cache of a token: TP2 has more than twice the blocks."""
    serve = {"max_model_len": 8192}
    assert blocks(serve={**serve, "tensor_parallel_size": 2}) > 2 * blocks(serve=serve)
    assert blocks(serve={**serve, "kv_cache_dtype": "fp8"}) == pytest.approx(2 * blocks(serve=serve), rel=1e-4)
    assert blocks(serve={**serve, "num_gpu_blocks_override": 1000}) == 999


def test_states_of_linear_attention_are_set_aside_where_they_have_no_blocks():
    """Of 36 layers, 32 matrices of 128 x 128 in BF16 and 3 tokens of 8,192 numbers, for each sequence that may run."""
    serve = {"max_model_len": 8192, "tensor_parallel_size": 2, "max_num_batched_tokens": 8192, "prefix_cache": "sglang"}
    few, many = (blocks(model="qwen3-next-80b-a3b", serve={**serve, "max_num_seqs": seqs}) for seqs in (64, 192))
    state, token = 36 * 2 * (32 * 128**2 + 3 * 8192) / 2, 12 * 2 * 2 * 256 * 2 / 2
    assert (few - many) * 16 * token == pytest.approx(128 * state, rel=0.02)


def test_data_ranks_hold_experts_between_them_and_attention_each():
    """MiniMax-M2 in FP8: 225 GB of experts over 8 ranks, whole or in slices, and about 5 GB of the rest on each."""
    for expert_parallel in (False, True):
        serve = {"data_parallel_size": 8, "enable_expert_parallel": expert_parallel}
        deployment = Deployment.of(Scenario.of({**TABLE, "model": "minimax-m2", "serve": serve}))
        assert deployment.model.weights(deployment.shards[0]) == pytest.approx(224.7e9 / 8 + 5.3e9, rel=0.01)
        assert deployment.model.cache_per_token(deployment.shards[0]) == 2 * 62 * 8 * 128 * 2
    assert blocks(model="minimax-m2", serve={**serve, "max_model_len": 8192}) > 20_000


def test_copies_of_experts_leave_less_room_for_the_cache():
    """32 of 128 more on 8 ranks: 4 experts of 48 layers on each, 3 x 2,048 x 768 weights in BF16."""
    serve = {"data_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 8192, "enable_eplb": True}
    plain, copied = (blocks(model="qwen3-30b-a3b", serve={**serve, "num_redundant_experts": several})
                     for several in (0, 32))
    assert (plain - copied) * 16 * 98_304 == pytest.approx(4 * 48 * 3 * 2048 * 768 * 2, rel=0.02)


def test_experts_and_copies_that_do_not_divide_are_refused():
    serve = {"data_parallel_size": 8, "enable_expert_parallel": True, "enable_eplb": True, "num_redundant_experts": 9}
    with pytest.raises(ConfigError, match=r"serve.num_redundant_experts: 128 experts and 9 .* 8 ranks; set it to 16"):
        blocks(model="qwen3-30b-a3b", serve=serve)


def test_a_model_that_does_not_fit_says_how_much_is_missing_and_what_would_do():
    with pytest.raises(DoesNotFit, match=r"llama-3.1-70b does not fit: 131.4 GiB of weights.*exceed the 128.6 GiB.*"
                                         r"by \d+\.\d GiB; tensor_parallel_size = 2 would fit"):
        blocks(model="llama-3.1-70b", serve={"max_model_len": 8192})


def test_a_model_too_large_for_the_system_says_so():
    with pytest.raises(DoesNotFit, match="no tensor_parallel_size up to the 8 GPUs of .* would fit"):
        blocks(model="llama-3.1-70b", gpu="l4", serve={"max_model_len": 131072})


def test_a_context_that_does_not_fit_says_which_would():
    with pytest.raises(DoesNotFit, match=r"one sequence of max_model_len = 131072 .* set max_model_len to at most \d+"):
        blocks(gpu="l4", model="llama-3.2-3b")


def test_settings_that_vllm_refuses_are_refused():
    model, gpu, version = model_of("llama-3.1-8b"), gpu_of("h200"), engine_of("vllm-0.33")
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens: \(64\) must be greater than or equal to max_num"):
        limits(derived(EngineSettings(max_num_batched_tokens=64, max_num_seqs=128), model, gpu), version)
    with pytest.raises(ConfigError, match="without chunked prefill"):
        limits(derived(EngineSettings(enable_chunked_prefill=False, max_num_batched_tokens=4096), model, gpu), version)
    with pytest.raises(ConfigError, match="131073 is more than the 131072 tokens of llama-3.1-8b"):
        derived(EngineSettings(max_model_len=131073), model, gpu)

"""Mamba, Mamba-2 and lightning attention by hand, and what sequences keep of them as vLLM does (mamba_utils.py)."""

import pytest

from ksim.compute.architectures.hybrids import falcon_h1
from ksim.compute.architectures.nemotron import nemotron_h
from ksim.compute.kernels.states import SelectiveScan, StateSpace
from ksim.compute.model import Config
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Precision, Shard

#: Granite 4 Small's heads on one of two ranks; 3 decodes, and chunks of 128 and of 256 + 2 tokens.
PROMPTS, DECODES = (StateSpace(part, 64, 1, 64, 128, 256) for part in ("prompts", "decodes"))
BATCH = Batch.of((1, 9), (1, 99), (1, 99_999), (128, 0), (258, 50))
MATRICES = 64 * 64 * 128


def test_decodes_read_and_write_a_matrix_a_head_whatever_their_context():
    kernel = DECODES.counted(BATCH)
    assert (kernel.sequences, kernel.tokens, kernel.family) == (3, 3, "ssd_decodes")
    assert kernel.work.flops == 3 * 5 * MATRICES
    assert kernel.work.writes == 3 * (4 * MATRICES + 2 * 64 * 64)
    assert kernel.work.reads == 3 * (4 * MATRICES + 2 * (64 * 64 + 2 * 128 + 64))


def test_prompts_have_products_with_matrices_and_within_chunks():
    kernel = PROMPTS.counted(BATCH)
    assert (kernel.tokens, kernel.chunks, kernel.family) == (386, 3, "ssd_prompts")
    assert kernel.work.flops == 386 * (4 * MATRICES + 2 * 256 * (128 + 64 * 64))
    assert kernel.work.writes == 386 * 2 * 64 * 64 + 2 * 4 * MATRICES + 3 * 4 * (256**2 + 2 * MATRICES)


@pytest.mark.parametrize("layer", [PROMPTS, SelectiveScan("prompts", 8192, 16)])
def test_twice_the_tokens_of_a_prompt_are_twice_the_work(layer):
    one, two = (layer.counted(Batch.of((new, 0))).work.flops for new in (640, 1280))
    assert two == 2 * one


def test_a_scan_keeps_a_few_numbers_of_each_channel():
    kernel = SelectiveScan("decodes", 8192, 16, DType.BF16).counted(BATCH)
    assert kernel.work.flops == 3 * 7 * 8192 * 16
    assert kernel.work.writes == 3 * 2 * (8192 + 8192 * 16)
    assert kernel.work.reads == 3 * 2 * (3 * 8192 + 2 * 16 + 8192 * 16) + 4 * 8192 * 16


@pytest.mark.parametrize("part, batch", [("prompts", Batch.of((1, 5))), ("decodes", Batch.of((5, 0)))])
def test_a_batch_without_its_kind_launches_nothing(part, batch):
    assert StateSpace(part, 64, 1, 64, 128, 256).counted(batch) is None
    assert SelectiveScan(part, 8192, 16).counted(batch) is None


@pytest.mark.parametrize("name, tensor, layers, conv, states", [
    ("granite-4.0-h-small", 1, 36, (8192 + 2 * 128) * 3 * 2, 128 * 64 * 128 * 2),
    ("granite-4.0-h-small", 8, 36, (1024 + 2 * 128) * 3 * 2, 16 * 64 * 128 * 2),  # each rank has the one group
    ("nemotron-3-nano-30b-a3b", 1, 23, (4096 + 2 * 8 * 128) * 3 * 2, 64 * 64 * 128 * 4),
    ("nemotron-3-nano-30b-a3b", 4, 23, (1024 + 2 * 2 * 128) * 3 * 2, 16 * 64 * 128 * 4),
    ("falcon-h1-34b", 2, 72, (2048 + 2 * 256) * 3 * 2, 16 * 128 * 256 * 2),
    ("jamba-mini-1.6", 2, 28, 4096 * 3 * 2, 4096 * 16 * 2),
])
def test_what_a_sequence_keeps(model, name, tensor, layers, conv, states):
    assert model(name).state_per_sequence(Shard(tensor=tensor)) == layers * (conv + states)


def test_formats_of_states(model):
    """The engine's are before the model's; states without any have that of convolutions."""
    def kept(name: str, **settings: str) -> float:
        return model(name).state_per_sequence(Shard(precision=EngineSettings(**settings).precision))

    tokens, states = (8192 + 2 * 128) * 3, 128 * 64 * 128
    assert kept("granite-4.0-h-small") == 36 * 2 * (tokens + states)
    assert kept("granite-4.0-h-small", mamba_cache_dtype="float32") == 36 * 4 * (tokens + states)
    assert kept("granite-4.0-h-small", mamba_ssm_cache_dtype="float32") == 36 * (2 * tokens + 4 * states)
    tokens, states = (4096 + 2 * 8 * 128) * 3, 64 * 64 * 128
    assert kept("nemotron-3-nano-30b-a3b", mamba_ssm_cache_dtype="float16") == 23 * 2 * (tokens + states)
    assert Precision().states(DType.FP32) == (DType.BF16, DType.FP32)


@pytest.mark.parametrize("name, tensor, message", [
    ("falcon-h1-34b", 4, "4 does not divide 32 Mamba-2 heads in 2 groups"),
    ("falcon-h1-7b", 16, "16 does not divide 24 Mamba-2 heads in 1 group"),
])
def test_ways_that_do_not_divide_heads_or_groups(model, name, tensor, message):
    with pytest.raises(ConfigError, match=message):
        model(name).state_per_sequence(Shard(tensor=tensor))


def test_layers_have_one_mixer_each_or_two_side_by_side(model):
    batch = Batch.of((1, 700), (64, 0))
    labels = [label for label, _ in model("falcon-h1-7b").graph(65, 2, Shard(tensor=2)).over(batch)]
    assert labels.count("attention") == labels.count("ssd_decodes") == labels.count("conv_prompts") == 44
    assert labels.count("squares_all_reduce") == 44 and labels.count("rope") == 44
    labels = [label for label, _ in model("nemotron-3-super-120b-a12b").graph(65, 2, Shard()).over(batch)]
    assert (labels.count("attention"), labels.count("ssd_prompts"), labels.count("latent_in")) == (8, 40, 40)
    assert "rope" not in labels and "squares_all_reduce" not in labels


def config(name: str, **settings: object) -> Config:
    return Config("mine", {**catalog.load("models", name), **settings})


@pytest.mark.parametrize("family, settings, message", [
    (nemotron_h, {"hybrid_override_pattern": "M-?"}, "mine: hybrid_override_pattern: '?' is none of M, *, -, E"),
    (nemotron_h, {"hybrid_override_pattern": None}, "mine: hybrid_override_pattern: is missing, and so is"
                                                    " layers_block_type"),
    (nemotron_h, {"mamba_ssm_cache_dtype": "fp8"}, "mine: mamba_ssm_cache_dtype: 'fp8' is none of auto, float32,"
                                                   " float16, bfloat16"),
    (nemotron_h, {"n_groups": 7}, "mine: n_groups: 7 does not divide 128 heads"),
    (falcon_h1, {"mamba_d_head": 64}, "mine: mamba_d_head: 24 heads of 64 are not the 3072 channels of Mamba-2"),
    (falcon_h1, {"projectors_bias": True}, "mine: projectors_bias: True is not modelled, only False"),
])
def test_configs_that_are_not_understood(family, settings, message):
    with pytest.raises(ConfigError) as error:
        family(config("falcon-h1-7b" if family is falcon_h1 else "nemotron-nano-9b-v2", **settings))
    assert str(error.value) == message


def test_a_run_says_that_prices_of_these_kernels_are_unmeasured():
    def told(model: str) -> str:
        table = {"model": model, "gpu": "h200", "workload": {"replay": {"path": "any.csv"}}}
        return " ".join(Deployment.of(Scenario.of(table)).remarks)

    assert "unmeasured: states of Mamba and lightning attention" in told("falcon-h1-7b")
    assert "states of Mamba" not in told("llama-3.2-1b") + told("qwen3.5-27b")

"""The gated delta rule and its convolution by hand, and what sequences keep of them."""

import pytest

from ksim.compute.architectures.qwen import qwen3_next
from ksim.compute.kernels.states import CausalConv, DeltaRule
from ksim.compute.model import Config
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Precision, Shard

#: Qwen3.5's heads on one of eight ranks: 8 of values, 2 of keys; 3 decodes, and chunks of 2 and of 3 x 64 tokens.
PROMPTS, DECODES = (DeltaRule(part, 8, 2, 128) for part in ("prompts", "decodes"))
BATCH = Batch.of((1, 9), (1, 99), (1, 99_999), (128, 0), (130, 50))


def test_decodes_read_and_write_a_matrix_a_head_whatever_their_context():
    kernel = DECODES.counted(BATCH)
    matrices = 3 * 8 * 128 * 128 * 4
    assert (kernel.sequences, kernel.tokens, kernel.family) == (3, 3, "delta_decodes")
    assert kernel.work.flops == 3 * 8 * 6 * 128**2
    assert kernel.work.reads == matrices + 3 * 256 * (2 * 2 + 8)
    assert kernel.work.writes == matrices + 3 * 256 * 8
    half = DeltaRule("decodes", 8, 2, 128, DType.BF16).counted(BATCH)
    assert kernel.work.writes - half.work.writes == matrices / 2


def test_prompts_go_by_chunks_one_after_the_other():
    kernel = PROMPTS.counted(BATCH)
    assert (kernel.tokens, kernel.chunks, kernel.longest, kernel.family) == (258, 5, 3, "delta_prompts")
    assert kernel.steps(sms=16) == 3  # 16 heads at a time: the longest sequence
    assert kernel.steps(sms=4) == 4 * 2.5  # 16 heads in four waves of 2.5 chunks on average
    assert DECODES.counted(BATCH).steps(sms=4) == 0


def test_twice_the_tokens_of_a_prompt_are_twice_the_work():
    one, two = (PROMPTS.counted(Batch.of((new, 0))).work.flops for new in (640, 1280))
    assert two == 2 * one


@pytest.mark.parametrize("layer, batch", [(PROMPTS, Batch.of((1, 5))), (DECODES, Batch.of((5, 0)))])
def test_a_batch_without_its_kind_launches_nothing(layer, batch):
    assert layer.counted(batch) is None
    assert CausalConv(layer.phase, 1536, 4).counted(batch) is None


def test_a_convolution_keeps_the_last_three_tokens():
    kernel = CausalConv("decodes", 1536, 4).counted(BATCH)
    assert kernel.work.writes == 1536 * 2 * (3 + 3 * 3)
    assert kernel.work.reads == kernel.work.writes + 1536 * 4 * 2


def test_decodes_that_verify_drafts_keep_a_matrix_after_each_token():
    """One is read, and as many are written as there are tokens."""
    kernel = DECODES.counted(Batch.of((4, 9), (4, 99), width=4))
    assert (kernel.sequences, kernel.tokens) == (2, 8)
    assert kernel.work.writes == 8 * (8 * 128 * 128 * 4 + 256 * 8)
    assert kernel.work.reads == 2 * 8 * 128 * 128 * 4 + 8 * 256 * (2 * 2 + 8)


def test_kimi_delta_attention_has_decays_by_channel(model):
    """Of 20 layers, 32 matrices of 128 x 128 in FP32 and 3 tokens of 12,288 numbers."""
    kimi = model("kimi-linear-48b-a3b")
    assert kimi.state_per_sequence(Shard()) == 20 * (32 * 128**2 * 4 + 3 * 12_288 * 2)
    halved = Precision(state=DType.BF16)
    assert kimi.state_per_sequence(Shard(precision=halved)) == kimi.state_per_sequence(Shard())
    kernels = dict(kimi.graph(65, 2, Shard(tensor=2)).over(Batch.of((1, 700), (64, 0))))
    assert (kernels["delta_prompts"].family, kernels["delta_decodes"].family) == ("kda_prompts", "delta_decodes")
    assert "rope" not in kernels


def test_what_a_sequence_keeps(model):
    """Of 45 layers, 64 matrices of 128 x 128 in FP32 and 3 tokens of 12,288 numbers; ranks share it out."""
    qwen = model("qwen3.5-397b-a17b")
    assert qwen.state_per_sequence(Shard()) == 45 * (64 * 128**2 * 4 + 3 * 12_288 * 2)
    assert 8 * qwen.state_per_sequence(Shard(tensor=8)) == qwen.state_per_sequence(Shard())
    assert model("llama-3.1-8b").state_per_sequence(Shard()) == 0


def test_three_of_four_layers_attend_linearly(model):
    batch = Batch.of((1, 700), (64, 0))
    labels = [label for label, _ in model("qwen3.5-397b-a17b").graph(65, 2, Shard(tensor=8)).over(batch)]
    assert labels.count("attention") == 15
    assert labels.count("delta_decodes") == labels.count("conv_prompts") == 45


def test_gates_of_attention_are_projected_along(model):
    """On two ranks, one KV head of two: 16 query heads and as many gates, a key and a value, of 256 each."""
    ops = dict(model("qwen3.5-397b-a17b").graph(65, 2, Shard(tensor=2)).over(Batch.of((1, 700), (64, 0))))
    assert ops["qkv"].n == (16 + 16 + 2) * 256 and ops["o_proj"].k == 16 * 256


def config(**settings):
    return Config("mine", {**catalog.load("models", "qwen3-next-80b-a3b"), **settings})


@pytest.mark.parametrize("settings, message", [
    ({"mamba_ssm_dtype": "float8"}, "mine: mamba_ssm_dtype: 'float8' is none of auto, float32, float16, bfloat16"),
    ({"linear_value_head_dim": 64}, "mine: linear_value_head_dim: expected 128, as linear_key_head_dim is"),
    ({"linear_num_key_heads": 5}, "mine: linear_num_key_heads: 5 does not divide 32 value heads"),
    ({"layer_types": ["mamba"] * 48}, "mine: layer_types: expected 48 times linear_attention or full_attention"),
])
def test_configs_that_are_not_understood(settings, message):
    with pytest.raises(ConfigError) as error:
        qwen3_next(config(**settings))
    assert str(error.value) == message


def test_ways_that_do_not_divide_linear_heads(model):
    with pytest.raises(ConfigError, match="32 does not divide 16 heads of linear attention"):
        model("qwen3.5-397b-a17b").graph(10, 1, Shard(tensor=32))

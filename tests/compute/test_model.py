"""Whole models against what is published of them, and their shards against the whole."""

import json
from pathlib import Path

import pytest

from ksim.compute.graph import Collective
from ksim.compute.kernels.attention import Attention
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Precision, Shard

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "h200"

@pytest.mark.parametrize("name, file", [("qwen3-0.6b", 751_632_384), ("qwen3-1.7b", 2_031_739_904)])
def test_a_file_that_stores_the_tied_head_again(model, name, file):
    sizes = model(name).decoder.sizes
    assert model(name).parameters() + sizes["m"] * sizes["V"] == file


@pytest.mark.parametrize("name, active", [
    ("mixtral-8x7b", 12_879_925_248),  # "12.9 B active" (arXiv 2401.04088): 6 of 8 experts in 32 layers rest
    ("qwen3-30b-a3b", 3_353_032_704),  # "3.3 B activated" (its model card): 120 of 128 in 48 layers
    ("llama-3.1-8b", 8_030_261_248),
    ("deepseek-v3", 37_552_297_472),  # "37B": 248 of 256 in 58 layers
    ("kimi-k2", 32_861_500_928),  # "32B": 376 of 384 in 60 layers
    ("qwen3.5-397b-a17b", 17_349_040_896),  # "A17B": 502 of 512 in 60 layers
    ("qwen3-next-80b-a3b", 3_874_929_408),  # "A3B": 502 of 512 in 48 layers, and both ends 0.62
    ("glm-5", 41_784_728_832),  # "40B", without the embedding's 0.95: 248 of 256 in 75 layers
    ("qwen3-235b-a22b", 22_190_763_520),  # "22 B activated" (its model card)
    # "5.13 B" and "3.61 B" (arXiv 2508.10925), which leave out the embedding of 201,088 x 2,880
    ("gpt-oss-120b", 5_132_849_472 + 201_088 * 2880),
    ("gpt-oss-20b", 3_608_307_264 + 201_088 * 2880),
    ("minimax-m2", 11_030_553_088),  # "10 B active" (its model card), and 0.6 B of an embedding
    ("nemotron-3-nano-30b-a3b", 3_580_076_352),  # "3.6B including embeddings" (its model card)
    ("nemotron-3-ultra-550b-a55b", 56_058_843_136),  # "A55B", and 1.1 B of an embedding
    ("jamba-mini-1.6", 12_110_311_296),  # "12B active" and "94B active" (arXiv 2408.12570)
    ("jamba-large-1.6", 94_149_338_592),
    ("minimax-text-01", 48_403_306_496),  # "45.9 B" (arXiv 2501.08313), and 2.46 B of embedding and head
    ("kimi-linear-48b-a3b", 3_484_459_904),  # "3B activated" (its model card), with 0.75 B of embedding and head
    ("granite-4.0-h-small", 8_803_121_664),  # "9B" (its model card)
    ("qwen3.5-122b-a10b", 9_771_288_576),
])
def test_active_parameters(model, name, active):
    assert model(name).active_parameters() == active


@pytest.mark.parametrize("name, length", [
    ("llama-3.1-8b", 131_072), ("gpt-oss-120b", 131_072), ("minimax-m2", 196_608),
    ("qwen3-8b", 40_960), ("phi-4", 16_384), ("gemma-2-9b", 8_192)])
def test_max_length(model, name, length):
    assert model(name).max_length == length


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_configs_agree_with_those_that_were_measured(name):
    path = MEASURED / f"engine_{name}.json"
    if not path.exists():
        pytest.skip("the measurements are not here")
    measured, ours = json.loads(path.read_text())["config"], catalog.load("models", name)
    differing = {key for key in measured if measured[key] != ours[key]}
    assert differing <= {"bos_token_id", "eos_token_id"}  # placeholders there: dummy weights need no tokenizer


def test_tensor_shards_hold_norms_each_and_share_the_rest(model):
    """8 x 1/8 of Llama 3.1 8B is the whole, and 7 times the 65 norms of 4,096 numbers in BF16."""
    llama = model("llama-3.1-8b")
    assert 8 * llama.weights(Shard(tensor=8)) - llama.weights(Shard()) == 7 * 65 * 4096 * 2
    assert 8 * llama.cache_per_token(Shard(tensor=8)) == llama.cache_per_token(Shard())


def test_more_ranks_than_kv_heads_hold_them_twice(model):
    """On 16 ranks, each of 8 KV heads is on 2: as many again of 32 layers x 2 x 8 x 128 x 4096 weights."""
    llama = model("llama-3.1-8b")
    norms, kv_heads = 15 * 65 * 4096 * 2, 32 * 2 * 8 * 128 * 4096 * 2
    assert 16 * llama.weights(Shard(tensor=16)) - llama.weights(Shard()) == norms + kv_heads
    assert 16 * llama.cache_per_token(Shard(tensor=16)) == 2 * llama.cache_per_token(Shard())


def test_experts_are_shared_out_and_routers_are_not(model):
    """What 4 ranks have more than once: 32 routers of 4,096 x 8, and 65 norms."""
    mixtral = model("mixtral-8x7b")
    assert 4 * mixtral.weights(Shard(tensor=4)) - mixtral.weights(Shard()) == 3 * 2 * (32 * 4096 * 8 + 65 * 4096)


@pytest.mark.parametrize("name, tensor", [("llama-3.1-8b", 8), ("mixtral-8x7b", 4), ("gemma-2-9b", 2)])
def test_tensor_shards_share_the_arithmetic_of_products(model, name, tensor):
    batch = Batch.of((1, 500), (32, 100))

    def flops(shard: Shard, routers: bool) -> float:
        launches = model(name).graph(batch.tokens, batch.samples, shard).over(batch)
        return sum(kernel.work.flops for label, kernel in launches
                   if kernel.family in ("gemm", "grouped_gemm", "attention") and (label == "router") == routers)

    assert tensor * flops(Shard(tensor=tensor), routers=False) == flops(Shard(), routers=False)
    assert flops(Shard(tensor=tensor), routers=True) == flops(Shard(), routers=True)  # each rank routes all tokens


def test_tensor_parallel_messages(model):
    """33 tokens of 4,096 numbers, twice a layer and after the embedding; 2 rows of 128,256 logits."""
    graph = model("llama-3.1-8b").graph(33, 2, Shard(tensor=4))
    messages = [(label, kernel) for label, kernel in graph.over(Batch.of((1, 500), (32, 100)))
                if isinstance(kernel, Collective)]
    assert [label for label, _ in messages] == [
        "embedding_all_reduce", *["o_proj_all_reduce", "down_all_reduce"] * 32, "logits_gather"]
    assert {kernel.bytes for label, kernel in messages if kernel.kind == "all_reduce"} == {270_336}
    assert messages[-1][1] == Collective("all_gather", 513_024, "tensor")


def test_experts_send_one_message_a_layer(model):
    graph = model("qwen3-30b-a3b").graph(100, 1, Shard(tensor=2))
    labels = [op.label for op in graph.blocks[1].ops if isinstance(op.kernel, Collective)]
    assert labels == ["o_proj_all_reduce", "experts_all_reduce"]


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_stages_partition_the_model(model, stages):
    llama, batch = model("llama-3.1-8b"), Batch.of((1, 500), (32, 100))
    shards = [Shard(stage=stage, stages=stages) for stage in range(stages)]
    assert [i for shard in shards for i in shard.share(32)] == list(range(32))
    assert sum(llama.weights(shard) for shard in shards) == llama.weights(Shard())
    assert sum(llama.cache_per_token(shard) for shard in shards) == llama.cache_per_token(Shard())
    launches = [launch for shard in shards for launch in llama.graph(33, 2, shard).over(batch)]
    sends = [kernel for label, kernel in launches if label in ("send_hidden", "send_residual")]
    assert sends == [Collective("send", 33 * 4096 * 2, "pipeline")] * (2 * (stages - 1))
    assert [launch for launch in launches if launch[1] not in sends] == list(llama.graph(33, 2, Shard()).over(batch))


def test_a_tied_head_on_a_stage_of_its_own_is_a_copy(model):
    llama = model("llama-3.2-1b")
    apart = sum(llama.weights(Shard(stage=stage, stages=2)) for stage in range(2))
    assert apart - llama.weights(Shard()) == 2048 * 128_256 * 2


def test_quantized_weights(model):
    """In FP8 all but embedding, head and norms takes half."""
    llama = model("llama-3.1-8b")
    kept = 2 * 128_256 * 4096 + 65 * 4096
    fp8 = Shard(precision=Precision(DType.FP8, DType.FP8))
    assert llama.weights(fp8) == llama.parameters() + kept


def test_a_chunk_of_which_nothing_is_sampled_needs_no_logits(model):
    graph = model("llama-3.1-8b").graph(512, 0, Shard(tensor=2))
    assert [op.label for op in graph.blocks[-1].ops] == ["final_norm"]


def test_a_step_in_full(small):
    """The small model's FLOP for a prompt of 10 tokens, product by product."""
    batch = Batch.of((10, 0))
    layer = 2 * 10 * 128 * (256 + 128 + 3 * 256)  # qkv of 16 heads of 16; o; gate, up and down
    attention = 4 * 55 * 8 * 16  # 1 + 2 + ... + 10 pairs
    launches = list(small().graph(10, 1, Shard()).over(batch))
    products = sum(kernel.work.flops for _, kernel in launches if kernel.family == "gemm")
    assert products == 2 * layer + 2 * 128 * 1000
    assert sum(kernel.work.flops for _, kernel in launches if isinstance(kernel, Attention)) == 2 * attention
    assert [label for label, _ in launches[:11]] == [
        "embedding", "attention_norm", "qkv", "rope", "kv_write", "attention", "o_proj", "mlp_norm", "gate_up", "act",
        "down"]
    assert [label for label, _ in launches[-4:]] == ["final_norm", "lm_head", "logits_cast", "sample"]


def test_ways_that_do_not_divide_the_model(small):
    with pytest.raises(ConfigError, match="3 does not divide 8 attention heads with 4 key/value heads"):
        small().graph(10, 1, Shard(tensor=3))


def test_caches_by_layer_say_what_each_layer_keeps(model):
    gpt, qwen = (model(name).cache_by_layer(Shard(tensor=2)) for name in ("gpt-oss-20b", "qwen3.5-397b-a17b"))
    assert [layer.window for layer in gpt] == [128, 0] * 12
    assert {layer.token_bytes for layer in gpt} == {2 * 4 * 64 * 2}
    assert [layer.sees_all for layer in qwen] == [False, False, False, True] * 15
    assert sum(layer.sequence_bytes for layer in qwen) == model("qwen3.5-397b-a17b").state_per_sequence(Shard(tensor=2))
    whole, stages = model("gpt-oss-20b"), [Shard(stage=stage, stages=5) for stage in range(5)]
    assert [layer for stage in stages for layer in whole.cache_by_layer(stage)] == whole.cache_by_layer(Shard())

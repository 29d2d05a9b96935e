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

#: Parameters as the safetensors files of the Hugging Face Hub count them, tied heads once, and bytes of KV cache
#: that a token takes in BF16: 2 x 2 bytes x layers x KV heads x head dimension.
PUBLISHED = {
    "llama-3.2-1b": (1_235_814_400, 32_768),
    "llama-3.2-3b": (3_212_749_824, 114_688),
    "llama-3.1-8b": (8_030_261_248, 131_072),
    "llama-3.1-70b": (70_553_706_496, 327_680),
    "mistral-7b": (7_248_023_552, 131_072),
    "qwen3-0.6b": (596_049_920, 114_688),
    "qwen3-1.7b": (1_720_574_976, 114_688),
    "qwen3-4b": (4_022_468_096, 147_456),
    "qwen3-8b": (8_190_735_360, 147_456),
    "qwen3-14b": (14_768_307_200, 163_840),
    "qwen3-32b": (32_762_123_264, 262_144),
    "qwen2.5-7b": (7_615_616_512, 57_344),
    "qwen2.5-32b": (32_763_876_352, 262_144),
    "phi-4": (14_659_507_200, 204_800),
    "gemma-2-2b": (2_614_341_888, 106_496),
    "gemma-2-9b": (9_241_705_984, 344_064),
    "gemma-2-27b": (27_227_128_320, 376_832),
    "mixtral-8x7b": (46_702_792_704, 131_072),
    "qwen3-30b-a3b": (30_532_122_624, 98_304),
    # Without the layer that predicts a second token; "671B" (arXiv 2412.19437), and "1.04T" (arXiv 2507.20534).
    "deepseek-v3": (671_026_419_200, 70_272),
    "deepseek-r1": (671_026_419_200, 70_272),
    "kimi-k2": (1_026_408_232_448, 70_272),
    "kimi-k2.5": (1_026_408_232_448, 70_272),  # its language model
    # "397B" with its vision part, "80B" (model cards); 15 and 12 layers that cache 2 x 2 x 256 numbers.
    "qwen3.5-397b-a17b": (396_346_350_336, 30_720),
    "qwen3-next-80b-a3b": (79_674_391_296, 24_576),
    "glm-5": (743_911_218_432, 100_152),  # "744B" (its model card); 78 x (2 x 576 + 132)
    "qwen3-235b-a22b": (235_093_634_560, 192_512),
    # Counted by hand in the table of the model card (arXiv 2508.10925): "116.83 B" and "20.91 B".
    "gpt-oss-120b": (116_829_156_672, 73_728),
    "gpt-oss-20b": (20_914_757_184, 49_152),
    "minimax-m2": (228_689_764_864, 253_952),
    "minimax-m2.5": (228_689_764_864, 253_952),
    # Layers of Mamba-2 and of Mamba cache nothing of a token; 2 x 2 x KV heads x head dimension of the others.
    "granite-4.0-h-small": (32_207_337_984, 4 * 4096),
    "granite-4.0-h-tiny": (6_939_037_248, 4 * 2048),
    "granite-4.0-h-micro": (3_191_396_096, 4 * 2048),
    "granite-4.0-micro": (3_402_836_480, 40 * 2048),
    "nemotron-nano-12b-v2": (12_310_001_152, 6 * 4096),
    "minitron-4b": (4_190_509_056, 32 * 4096),
    "falcon-h1-7b": (7_585_654_880, 44 * 1024),
    "falcon-h1-34b": (33_642_516_224, 72 * 2048),
    "nemotron-nano-9b-v2": (8_888_227_328, 4 * 4096),
    # Without layers that predict a second token; "120B" and "550B".
    "nemotron-3-nano-30b-a3b": (31_577_940_288, 6 * 1024),
    "nemotron-3-super-120b-a12b": (120_668_707_840, 8 * 1024),
    "nemotron-3-ultra-550b-a55b": (549_308_993_536, 12 * 1024),
    "jamba-mini-1.6": (51_570_323_328, 4 * 4096),
    "jamba-large-1.6": (398_555_145_696, 9 * 4096),  # "398B" (arXiv 2408.12570)
    "minimax-text-01": (456_089_655_296, 10 * 4096),
    "llama-3.3-nemotron-super-49b": (49_867_145_216, 49 * 4096),
    # Their language models: "27B", "35B" and "122B" with vision parts and layers that predict a second token.
    "qwen3.5-27b": (26_895_998_464, 16 * 4096),
    "qwen3.5-35b-a3b": (34_660_610_688, 10 * 2048),
    "qwen3.5-122b-a10b": (122_111_526_912, 12 * 2048),
}


#: Bytes by which routers in FP32, and the corrections of their scores, are larger than in BF16.
EXACT = {**dict.fromkeys(("minimax-m2", "minimax-m2.5"), 2 * 62 * 256 * (3072 + 1)),
         **dict.fromkeys(("deepseek-v3", "deepseek-r1"), 2 * 58 * 256), "glm-5": 2 * 75 * 256,
         **dict.fromkeys(("kimi-k2", "kimi-k2.5"), 2 * 60 * 384),
         "minimax-text-01": 2 * 80 * 32 * 6144,
         "nemotron-3-nano-30b-a3b": 2 * 23 * 128 * (2688 + 1), "nemotron-3-super-120b-a12b": 2 * 40 * 512 * (4096 + 1),
         "nemotron-3-ultra-550b-a55b": 2 * 48 * 512 * (8192 + 1)}


@pytest.mark.parametrize("name", catalog.entries("models"))
def test_published_size(model, name):
    parameters, cache = PUBLISHED[name]
    assert model(name).parameters() == parameters
    assert model(name).weights(Shard()) == 2 * parameters + EXACT.get(name, 0)
    assert model(name).cache_per_token(Shard()) == cache


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

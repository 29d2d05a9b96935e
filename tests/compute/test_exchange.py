"""Experts over data ranks: whose tokens, whose experts, and which messages."""

from itertools import product

import numpy as np
import pytest
from attrs import evolve

from ksim.compute.graph import Collective, Fanout
from ksim.compute.kernels.basic import GroupedGemm, Pointwise
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.models import model_of
from ksim.specs.shard import Placement, Precision, Routing, Shard

MIXTURES = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b", "minimax-m2")


def messages(model, shard, tokens=64, everywhere=None):
    """Of one layer: labels and collectives."""
    graph = model.graph(tokens, tokens, shard, everywhere)
    return {op.label: op.kernel for op in graph.blocks[1].ops if isinstance(op.kernel, Collective)}


def products(model, shard, tokens=64, everywhere=None):
    graph = model.graph(tokens, tokens, shard, everywhere)
    return {op.label: op.kernel for op in graph.blocks[1].ops if isinstance(op.kernel, GroupedGemm)}


def test_all_tokens_are_gathered_and_sums_scattered(model):
    """4 data ranks of 64 tokens: 256 hidden states of 2,048 numbers with 128 logits, in BF16."""
    shard = Shard(data=4, expert_parallel=True)
    assert messages(model("qwen3-30b-a3b"), shard) == {
        "dispatch": Collective("all_gather", 256 * (2048 + 128) * 2, "data"),
        "experts_reduce_scatter": Collective("reduce_scatter", 256 * 2048 * 2, "data")}


def test_tensor_ranks_divide_their_tokens_before_experts_are_dealt_out(model):
    shard = Shard(tensor=2, data=4, expert_parallel=True)
    sent = messages(model("qwen3-30b-a3b"), shard)
    assert (sent["dispatch"].group, sent["experts_reduce_scatter"].group) == ("expert", "expert")
    assert sent["experts_all_gather"] == Collective("all_gather", 64 * 2048 * 2, "tensor")


def test_slices_of_experts_are_summed_over_both_kinds_of_ranks(model):
    sent = messages(model("qwen3-30b-a3b"), Shard(tensor=2, data=4))
    assert sent["experts_reduce_scatter"].group == "data"
    assert sent["experts_all_reduce"] == Collective("all_reduce", 64 * 2048 * 2, "tensor")


def test_tensor_ranks_alone_have_all_tokens(model):
    """With one data rank, expert parallelism or not, an all-reduce is all there is."""
    for expert_parallel in (False, True):
        sent = messages(model("qwen3-30b-a3b"), Shard(tensor=4, expert_parallel=expert_parallel))
        assert sent == {label: Collective("all_reduce", 64 * 2048 * 2, "tensor")
                        for label in ("o_proj_all_reduce", "experts_all_reduce")}


@pytest.mark.parametrize("activations, each", [(DType.FP8, 2048 + 2048 / 128 * 4), (DType.BF16, 2 * 2048)])
def test_low_latency_sends_a_copy_to_each_expert(model, activations, each):
    shard = Shard(data=8, expert_parallel=True, exchange="deepep_low_latency",
                  precision=Precision(activations, activations))
    sent = messages(model("qwen3-30b-a3b"), shard)
    assert sent["dispatch"] == Collective("low_latency_dispatch", 64 * 8 * each, "expert")
    assert sent["experts_combine"] == Collective("low_latency_combine", 64 * 8 * 2048 * 2, "expert")


def test_high_throughput_sends_a_copy_to_each_rank(model):
    """Of 8 ranks, 8 choices reach 8 x (1 - (7/8)^8) = 5.25."""
    shard = Shard(data=8, expert_parallel=True, exchange="deepep_high_throughput")
    sent = messages(model("qwen3-30b-a3b"), shard)
    assert sent["dispatch"].bytes == pytest.approx(64 * 5.251 * 2048 * 2, rel=1e-3)
    assert sent["dispatch"].kind == "dispatch"


@pytest.mark.parametrize("exchange", ["deepep_low_latency", "deepep_high_throughput"])
def test_a_rank_routes_and_quantizes_its_own_tokens_where_it_sends_them(model, exchange):
    """Of 8 ranks with 64 tokens each; where all are gathered, each rank routes and quantizes 512."""
    precision = Precision(DType.FP8, DType.FP8)
    sending = Shard(data=8, expert_parallel=True, exchange=exchange, precision=precision)
    own, all_of_them = (_others(model("qwen3-30b-a3b"), shard) for shard in (
        sending, evolve(sending, exchange="allgather_reducescatter")))
    for label in ("topk", "experts_gate_up_quantize"):
        assert (own[label].rows, all_of_them[label].rows) == (64, 512)
    assert 8 * own["experts_gate_up_quantize"].work.bytes == all_of_them["experts_gate_up_quantize"].work.bytes


def test_results_of_a_received_token_are_added_up_before_they_go_back(model):
    """A token has 8 pairs on 5.251 ranks: low-latency kernels add up what comes back, the others one result a rank."""
    fast, high = (_others(model("qwen3-30b-a3b"), Shard(data=8, expert_parallel=True, exchange=f"deepep_{kind}"))
                  for kind in ("low_latency", "high_throughput"))
    assert not {"combine", "dispatch_permute"} & fast.keys()
    pairs = high["experts_act"].rows
    assert high["combine"].rows == high["dispatch_permute"].rows == pytest.approx(pairs * 5.251 / 8, abs=1)
    assert high["dispatch_permute"].write_bytes == pairs * 2048 * 2


def _others(model, shard):
    """What only moves memory in one layer for 64 tokens, by label."""
    return {op.label: op.kernel for op in model.graph(64, 64, shard).blocks[1].ops if isinstance(op.kernel, Pointwise)}


def test_groups_of_experts_limit_where_a_token_goes(model):
    """DeepSeek-V3 has 8 groups, of which a token's experts are in 4; EPLB moves experts out of their groups."""
    shard = Shard(data=32, expert_parallel=True, exchange="deepep_high_throughput")
    sent, moved = (next(op.kernel for block in model("deepseek-v3").graph(64, 64, each).blocks for op in block.ops
                        if op.label == "dispatch")
                   for each in (shard, evolve(shard, placement=Placement("balanced", 32))))
    assert sent.fanout == Fanout(8, 8, 4)
    assert sent.bytes == pytest.approx(64 * 7.0 * 7168 * 2)
    assert moved.fanout == Fanout(8) and moved.bytes > sent.bytes


@pytest.mark.parametrize("groups, chosen", [(1, 1), (8, 4), (4, 2), (16, 16)])
@pytest.mark.parametrize("parts", [1, 2, 4, 8, 32, 128])
def test_a_token_reaches_as_many_parts_as_drawn_ones(groups, chosen, parts):
    """Scores of 256 experts are drawn, groups chosen by their two best, and in these the 8 best experts."""
    scores = np.random.default_rng(parts).random((4000, groups, 256 // groups))
    best = np.sort(scores, axis=-1)[..., -2:].sum(axis=-1)
    shut = np.argsort(-best, axis=-1)[:, chosen:]
    np.put_along_axis(scores, shut[..., None], 0.0, axis=1)
    experts = np.argsort(-scores.reshape(4000, 256), axis=-1)[:, :8] // (256 // parts)
    reached = np.mean([len(set(each)) for each in experts.tolist()])
    assert Fanout(8, groups, chosen).reached(parts) == pytest.approx(reached, rel=0.06)


def test_groups_that_do_not_divide_experts_are_refused():
    with pytest.raises(ConfigError, match="n_group: 256 experts in 7 groups, of which a token chooses 4"):
        model_of("deepseek-v3", {"n_group": 7})


@pytest.mark.parametrize("name", MIXTURES)
def test_ranks_that_share_experts_hold_them_all_once(model, name):
    """Slices or whole experts: ranks sum to the whole, but for what each of them has of its own."""
    whole, routed = model(name), 0
    for expert_parallel, (tensor, data) in product((False, True), ((1, 4), (2, 2), (4, 1), (2, 4))):
        shard = Shard(tensor=tensor, data=data, expert_parallel=expert_parallel)
        dense = whole.weights(Shard(tensor=tensor)) - _routed(whole, Shard(tensor=tensor))
        assert whole.weights(shard) == dense + _routed(whole, shard)
        if name != "gpt-oss-20b" or expert_parallel:  # every slice of an expert adds the bias of its whole result
            routed = routed or _routed(whole, Shard())
            assert tensor * data * _routed(whole, shard) == routed


def _routed(model, shard):
    return sum(op.weights(_sizes(model), shard) for layer in model.decoder.layers for op in layer
               if getattr(op, "routed", ""))


def _sizes(model):
    return Sizes(model.decoder.sizes)


def test_experts_see_the_tokens_of_all_ranks(model):
    """100 tokens here, 300 everywhere: all of them on slices of all experts, attention still over 100."""
    mixtral, shard = model("mixtral-8x7b"), Shard(data=2)
    graph = mixtral.graph(100, 1, shard, 300)
    kernels = {op.label: op.kernel for op in graph.blocks[1].ops}
    assert kernels["experts_gate_up"].rows == 2 * 300 and kernels["experts_gate_up"].n == 14336
    assert kernels["qkv"].m == 100 and kernels["router"].m == 100
    assert mixtral.graph(100, 1, shard).blocks == mixtral.graph(100, 1, shard, 200).blocks


def test_a_rank_of_whole_experts_has_the_fullest_ones_rows(model):
    """128 experts over 8 ranks, 8 x 64 tokens of 8 choices: 512 on the mean, and the fullest has more."""
    kernels = products(model("qwen3-30b-a3b"), Shard(data=8, expert_parallel=True))
    assert kernels["experts_gate_up"].n == 2 * 768
    assert 512 < kernels["experts_gate_up"].rows < 600
    assert kernels["experts_gate_up"].active <= 16
    assert kernels["experts_down"].rows == kernels["experts_gate_up"].rows


def test_routing_layer_by_layer_makes_layers_differ(model):
    qwen = model("qwen3-30b-a3b")
    even, steep = tuple([1.0] * 128), tuple([2.0] * 32 + [0.5] * 96)
    routing = Routing(shares=tuple(steep if layer % 2 else even for layer in range(48)))
    blocks = qwen.graph(512, 1, Shard(routing=routing)).blocks
    fullest = [op.kernel.expert_rows[0][0] for block in blocks for op in block.ops if op.label == "experts_down"]
    assert len(fullest) == 2 and fullest[1] > 1.3 * fullest[0]
    assert sum(block.repeat for block in blocks) == 2 + 24


def test_an_expert_that_cannot_be_sliced_is_refused(model):
    with pytest.raises(ConfigError, match="5 does not divide an MLP of 768"):
        model("qwen3-30b-a3b").graph(10, 1, Shard(data=5))


def test_experts_that_do_not_divide_leave_the_first_rank_one_more(model):
    """128 experts over 3 ranks: 43, 43 and 42."""
    qwen = model("qwen3-30b-a3b")
    assert products(qwen, Shard(data=3, expert_parallel=True), tokens=4096)["experts_down"].active == 43
    assert _routed(qwen, Shard(data=3, expert_parallel=True)) == 43 * _routed(qwen, Shard()) / 128


def test_experts_may_be_dealt_out_to_groups_that_slice_them(model):
    """Four GPUs in two groups: each has half of 128 experts, and half of the 768 columns of each."""
    qwen, four = model("qwen3-30b-a3b"), {"tensor": 4, "expert_parallel": True}
    dealt, both = Shard(**four), Shard(**four, slices=2)
    assert qwen.weights(both) == qwen.weights(dealt)
    whole, half = (products(qwen, shard)["experts_gate_up"] for shard in (dealt, both))
    assert (half.n, half.k) == (whole.n // 2, whole.k) and 1.5 * whole.rows < half.rows <= 2 * whole.rows
    assert messages(qwen, both) == messages(qwen, dealt)


def test_a_group_of_all_gpus_slices_every_expert(model):
    qwen = model("qwen3-30b-a3b")
    sliced, all_of_them = (products(qwen, Shard(tensor=4, expert_parallel=parallel, slices=slices))
                           for parallel, slices in ((False, 1), (True, 4)))
    assert sliced == all_of_them


@pytest.mark.parametrize("routing", [Routing(), Routing(1.0)])
def test_what_ranks_do_on_average_is_what_one_would_do_alone(model, routing):
    """FLOP, weights read and results written, of whole experts over 8 ranks; the fullest does more."""
    shard = Shard(data=8, expert_parallel=True, routing=routing)
    ranks = {op.label: op for op in model("qwen3-30b-a3b").graph(64, 1, shard).blocks[1].ops}
    alone = products(model("qwen3-30b-a3b"), Shard(routing=routing), tokens=8 * 64)
    for label, kernel in alone.items():
        mean, work = ranks[label].mean, kernel.work
        assert 8 * mean.work.flops == pytest.approx(work.flops, rel=1e-12) and 8 * mean.active == kernel.active
        assert 8 * mean.work.writes == pytest.approx(work.writes, rel=1e-12)
        assert ranks[label].kernel.work.flops > mean.work.flops
    assert ranks["experts_act"].mean.work.bytes == 8 * 64 * 3 * 768 * 2 < ranks["experts_act"].kernel.work.bytes
    assert {op.label for op in ranks.values() if op.mean} == {
        "topk", "experts_gate_up", "experts_act", "experts_down", "combine"}


@pytest.mark.parametrize("shard", [Shard(), Shard(tensor=4), Shard(data=4), Shard(tensor=4, expert_parallel=True,
                                                                                  slices=4)])
def test_ranks_that_all_have_slices_of_all_experts_are_alike(model, shard):
    graph = model("qwen3-30b-a3b").graph(64, 1, shard)
    assert not [op for block in graph.blocks for op in block.ops if op.mean]


def test_copies_are_weights_of_their_own(model):
    """128 experts and 32 copies over 8 ranks: 20 each, not 16."""
    qwen, plain = model("qwen3-30b-a3b"), Shard(data=8, expert_parallel=True)
    copied = evolve(plain, placement=Placement("balanced", 32))
    assert _routed(qwen, copied) == 20 / 16 * _routed(qwen, plain)
    assert qwen.weights(copied) - qwen.weights(plain) == _routed(qwen, copied) - _routed(qwen, plain)
    with pytest.raises(ConfigError, match="128 experts and 5 redundant ones do not divide among 8 ranks; set it to 8"):
        qwen.weights(evolve(plain, placement=Placement("balanced", 5)))

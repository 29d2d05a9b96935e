"""Products: which GEMMs they are, what their splits send, and what is refused."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.compute.kernels.basic import BatchedGemm, Gemm
from ksim.compute.notation.communicate import GROUPS
from ksim.compute.notation.product import op
from ksim.compute.sizes import parse
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from tests.compute.notation.layers import flops, launched, tasks
from tests.compute.strategies import equations
from tests.properties import examples

QKV = op("bsm,miKh->bsiKh", parallel="K", label="qkv")
O_PROJ = op("bsKrh,Krhm->bsm", parallel="K", label="o_proj")


def test_without_a_batch_it_is_a_gemm():
    assert launched(QKV) == [("qkv", Gemm(4096, 10240, 8192))]
    assert launched(QKV, tensor=8) == [("qkv", Gemm(4096, 1280, 8192))]


def test_with_a_batch_it_is_a_batched_gemm():
    scores = op("bKrsh,bKzh->bKrsz", parallel="K", label="QK")
    assert launched(scores) == [("QK", BatchedGemm(8, 32768, 4096, 128))]
    assert launched(scores, tensor=4) == [("QK", BatchedGemm(2, 32768, 4096, 128))]


def test_axes_of_size_1_are_no_batch():
    """With a KV head a rank, and one sequence."""
    assert launched(op("bKrsh,bKzh->bKrsz", parallel="K", label="QK"), tensor=8) == [("QK", Gemm(32768, 4096, 128))]


def test_a_contracted_split_index_is_summed_over_its_group():
    """4,096 tokens of 8,192 numbers in BF16."""
    assert launched(O_PROJ, tensor=8) == [
        ("o_proj", Gemm(4096, 8192, 1024)), ("o_proj_all_reduce", Collective("all_reduce", 67_108_864, "tensor"))]
    by_expert = op("bsKrh,Krhm->bsm", parallel={"K": "expert"}, label="o_proj")
    assert launched(by_expert, expert=2)[1] == (
        "o_proj_all_reduce", Collective("all_reduce", 67_108_864, "expert"))


def test_a_group_of_one_rank_sends_nothing():
    assert launched(O_PROJ) == [("o_proj", Gemm(4096, 8192, 8192))]


def test_sums_over_two_groups_are_sent_one_after_the_other():
    both = op("bsKrh,Krhm->bsm", parallel={"K": "tensor", "r": "expert"}, label="o_proj")
    assert [kernel.group for _, kernel in launched(both, tensor=2, expert=4)[1:]] == ["tensor", "expert"]


def test_sequence_parallelism_scatters_sums_and_gathers_inputs():
    """As in Megatron: an all-reduce in two halves, with 1/8 of the tokens on each rank between."""
    o_proj = op("bsKrh,Krhm->bsm", parallel="K", scatter="s", label="o_proj")
    gate_up = op("bsm,mgF->bsgF", parallel="F", gather="s", label="gate_up")
    assert launched(o_proj, tensor=8)[1] == (
        "o_proj_reduce_scatter", Collective("reduce_scatter", 67_108_864, "tensor"))
    assert launched(gate_up, tensor=8) == [
        ("gate_up_all_gather", Collective("all_gather", 67_108_864, "tensor")), ("gate_up", Gemm(4096, 7168, 8192))]
    assert len(launched(o_proj)) == len(launched(gate_up)) == 1


def test_a_scattered_sum_leaves_less_for_the_next():
    both = op("bsKrh,Krhm->bsm", parallel={"r": "expert", "K": "tensor"}, scatter="s", label="o_proj")
    assert launched(both, tensor=8, expert=2)[1:] == [
        ("o_proj_reduce_scatter", Collective("reduce_scatter", 67_108_864, "tensor")),
        ("o_proj_all_reduce", Collective("all_reduce", 8_388_608, "expert"))]


def test_experts_are_a_batch_that_their_group_deals_out():
    experts = op("ETm,Emgf->ETgf", parallel={"E": "expert", "f": "tensor"}, label="experts")
    assert launched(experts, expert=4, tensor=2) == [("experts", BatchedGemm(4, 512, 1024, 8192))]


def test_three_operands_are_two_products():
    """The sum over the split F belongs to the second."""
    mlp = op("bsm,mF,Fh->bsh", parallel="F", label="mlp")
    assert launched(mlp, tensor=8) == [
        ("mlp_1", Gemm(4096, 3584, 8192)), ("mlp_2", Gemm(4096, 128, 3584)),
        ("mlp_2_all_reduce", Collective("all_reduce", 1_048_576, "tensor"))]


def test_number_formats():
    weights = op("bsm,mF->bsF", weights="fp8", label="up")
    assert launched(weights) == [("up", Gemm(4096, 28672, 8192, DType.FP8))]
    with pytest.raises(ConfigError, match="QK: has a batch over bK, and products with one are in BF16"):
        launched(op("bKrsh,bKzh->bKrsz", weights="fp8", label="QK"))
    with pytest.raises(ValueError, match="'fp7' is not a number format"):
        op("bsm,mF->bsF", weights="fp7")


def test_without_a_label_it_is_called_by_its_equation():
    assert op("bsm,mF->bsF").label == "bsm,mF->bsF"


@given(equations(), st.data())
@examples(100)
def test_flop_are_two_for_each_product_of_sizes(text, data):
    sizes = {index: data.draw(st.integers(1, 64)) for index in parse(text).indices}
    parts = parse(text).contractions
    assert flops(op(text), sizes) == sum(2 * prod(sizes[index] for index in {*part.left, *part.right})
                                         for part in parts)


@given(equations(), st.sampled_from(GROUPS), st.integers(2, 8), st.data())
@examples(100)
def test_flop_of_all_ranks_are_those_of_the_whole(text, group, ranks, data):
    """Where every product has the split index; and sums are sent just where it is contracted."""
    read = parse(text)
    shared = [index for index in read.indices if all(index in part.left + part.right for part in read.contractions)]
    index = data.draw(st.sampled_from(shared)) if shared else None
    if index is None:
        return
    sizes = {each: ranks * data.draw(st.integers(1, 16)) for each in read.indices}
    split = op(text, parallel={index: group})
    assert ranks * flops(split, sizes, **{group: ranks}) == flops(op(text), sizes)
    sums = [task for task in tasks(split, sizes, **{group: ranks}) if isinstance(task.kernel, Collective)]
    assert len(sums) == (index not in read.results[0])


@pytest.mark.parametrize("equation, settings, problem", [
    ("bsm->bsm", {}, "expected 2 or 3 operands, with commas between them, not 1"),
    ("bsm,mF->bsG", {}, "index 'G' of the result is in no input"),
    ("bsm,mgF->bsF", {}, "index 'g' is in one input only and not in the result"),
    ("bsm,mF->bsF", {"parallel": "K"}, "parallel index 'K' is not one of b, s, m, F"),
    ("bsm,mF->bsF", {"gather": "F"}, "gather index 'F' is not one of b, s, m"),
    ("bsF,Fm->bsm", {"parallel": "F", "scatter": "F"}, "scatter index 'F' is not one of b, s, m"),
    ("bsm,mF->bsF", {"parallel": "s", "gather": "s"}, "gather index 's' is split by the same group here"),
    ("bsm,mF->bsF", {"parallel": "F", "scatter": "s"},
     "there is no sum over 'tensor' to scatter by 's': of two operands, that group must split an index that is"
     " contracted"),
])
def test_products_that_make_no_sense(equation, settings, problem):
    with pytest.raises(ValueError) as error:
        op(equation, **settings)
    assert str(error.value) == f"{equation!r}: {problem}"


@pytest.mark.parametrize("settings, name", [
    ({"overlap_stage": 0}, "overlap_stage"), ({"overlap_sms": -1}, "overlap_sms"), ({"overlap_stage": 1.5}, "stage"),
    ({"overlap_stage": 4}, "overlap_stage = 4 and overlap_sms = 0"), ({"overlap_sms": 4}, "set 2 or more stages")])
def test_overlap_is_a_number_of_pieces_and_of_sms(settings, name):
    with pytest.raises((ValueError, TypeError), match=name):
        op("bsm,mF->bsF", **settings)
    assert op("bsm,mF->bsF", overlap_stage=4, overlap_sms=16).overlap_stage == 4


def test_sizes_that_do_not_divide_say_which_index_and_group():
    with pytest.raises(ConfigError) as error:
        launched(QKV, tensor=16)
    assert str(error.value) == "qkv: index 'K' has size 8, which does not divide over 16 ranks (group 'tensor')"
    with pytest.raises(ConfigError, match="index 's' has size 4096, which does not divide over 3 ranks"):
        launched(op("bsm,mF->bsF", gather="s"), tensor=3)


def test_an_index_without_a_size():
    with pytest.raises(ConfigError, match="up: index 'q' has no size; sizes has b, s"):
        launched(op("bsm,mq->bsq", label="up"))

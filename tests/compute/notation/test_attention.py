"""Fused attention: the kernel that vLLM's batches give too, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.notation.attention import attend
from ksim.compute.notation.product import op
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from tests.compute.notation.layers import flops, launched, tasks
from tests.properties import examples

EQUATION = "bKrsh,bKzh,bKzh->bKrsh"


@given(st.integers(1, 8), st.integers(1, 200), st.integers(0, 200), st.sampled_from([0, 1, 50]))
@examples(50)
def test_causal_attention_is_that_of_a_batch(count, new, context, window):
    """Of so many sequences, each with new tokens after those in the cache; one new token is a decode."""
    made = launched(attend(EQUATION, window=window, cache="fp8"), {"b": count, "s": new, "z": new + context})
    batch = Batch.of(*[(new, context)] * count)
    assert made == [("attention", AttentionLayer(64, 8, 128, window, DType.FP8).over(batch))]


def test_the_order_of_indices_is_free_but_for_the_head_dimension():
    assert launched(attend("bsKrh,bzKh,bzKh->bsKrh")) == launched(attend(EQUATION))


def test_indices_may_have_other_names():
    renamed = attend("nGgqd,nGkd,nGkd->nGgqd", sequences="n", queries="q")
    sizes = {"n": 1, "q": 4096, "k": 4096, "G": 8, "d": 128}
    assert launched(renamed, {**sizes, "g": 8}) == launched(attend(EQUATION))


def test_every_query_sees_every_key_if_not_causal():
    """As the unfused products do: two FLOP for a pair and a number of a head, twice."""
    whole = attend(EQUATION, causal=False)
    unfused = op("bKrsh,bKzh->bKrsz"), op("bKrsz,bKzh->bKrsh")
    assert flops(whole) == sum(map(flops, unfused))
    moved = [sum(task.kernel.work.bytes for task in tasks(each)) for each in (whole, *unfused)]
    assert moved[0] < min(moved[1:])


def test_queries_of_one_sequence_to_keys_of_another():
    kernel, = [task.kernel for task in tasks(attend(EQUATION, causal=False), {"s": 100, "z": 10})]
    assert (kernel.queries, kernel.keys, kernel.pairs) == (100, 10, 1000)


@pytest.mark.parametrize("group", ["tensor", "expert"])
def test_ranks_share_heads(group):
    split = attend(EQUATION, parallel={"K": group})
    assert launched(split, **{group: 4})[0][1].kv_heads == 2
    assert 4 * flops(split, **{group: 4}) == flops(split)


@pytest.mark.parametrize("equation, settings, problem", [
    ("bKrsh,bKzh->bKrsh", {}, "expected 3 operands, with commas between them, not 2"),
    ("bKrsh,bKzh,bKyh->bKrsh", {}, "expected keys and values alike, and a result with the indices of the queries"),
    ("bKrsh,bKzh,bKzh->bKrs", {}, "expected keys and values alike, and a result with the indices of the queries"),
    ("bKrsh,bKhz,bKhz->bKrsh", {}, "expected all tensors to end in one index, the head's dimension, not in h, z, z, h"),
    ("bKrsh,bKh,bKh->bKrsh", {}, "expected one index that keys have and queries lack, not 0"),
    ("bKrqh,bKzh,bKzh->bKrqh", {}, "index 's' of the queries must be in the queries and not in the keys"),
    (EQUATION, {"parallel": "F"}, "parallel index 'F' is not one of b, K, r, s, h, z"),
    (EQUATION, {"parallel": {"s": "context"}},
     "parallel index 's' is not one of heads or sequences; to split tokens, wrap it in ring(...) or ulysses(...),"
     " by='context'"),
    (EQUATION, {"causal": False, "window": 8}, "a window looks back; without causal there is none"),
])
def test_attention_that_makes_no_sense(equation, settings, problem):
    with pytest.raises(ValueError) as error:
        attend(equation, **settings)
    assert str(error.value) == f"{equation!r}: {problem}"


def test_keys_include_the_new_tokens():
    with pytest.raises(ConfigError, match="attention: index 'z' has size 10 and 's' 4096, but keys include"):
        launched(attend(EQUATION), {"z": 10})

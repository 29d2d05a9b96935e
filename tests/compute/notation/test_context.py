"""Context parallelism: what rings and Ulysses compute and send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.compute.kernels.attention import Attention
from ksim.compute.notation.attention import attend, ring, ulysses
from ksim.compute.notation.pointwise import pointwise
from ksim.compute.notation.product import op
from ksim.foundation.errors import ConfigError
from tests.compute.notation.layers import launched, tasks
from tests.properties import examples

ATTEND = attend("bKrsh,bKzh,bKzh->bKrsh", parallel="K")
QUERIES, KEYS = 4096 * 64 * 128 * 2, 4096 * 8 * 128 * 2  # bytes of all queries, and of all keys


def attentions(operation, sizes=None, **ranks):
    return [task.kernel for task in tasks(operation, sizes, **ranks) if isinstance(task.kernel, Attention)]


def test_ulysses_swaps_tokens_for_heads_and_back():
    """Queries, keys, values, then outputs: what each of 4 x 2 ranks has of them."""
    found = launched(ulysses(ATTEND), tensor=2, context=4)
    assert found == [
        ("ulysses_bKrsh", Collective("all_to_all", QUERIES / 8, "context")),
        *[("ulysses_bKzh", Collective("all_to_all", KEYS / 8, "context"))] * 2,
        *launched(ATTEND, tensor=8),
        ("ulysses_bKrsh", Collective("all_to_all", QUERIES / 8, "context"))]


def test_ulysses_over_query_heads_gathers_keys():
    """Where there are too few KV heads, each rank needs all keys and values."""
    sent = [kernel for _, kernel in launched(ulysses(ATTEND, heads="r"), tensor=8, context=4)
            if isinstance(kernel, Collective)]
    assert sent[1:3] == [Collective("all_gather", KEYS / 8, "context")] * 2


def test_what_ulysses_makes_itself_is_not_sent():
    block = ulysses(op("bKrsh,bKzh->bKrsz", "K"), pointwise("softmax", "bKrsz->bKrsz", "K"),
                    op("bKrsz,bKzh->bKrsh", "K"))
    kinds = [kernel.kind for _, kernel in launched(block, context=2) if isinstance(kernel, Collective)]
    assert kinds == ["all_to_all"] * 4


@pytest.mark.parametrize("block", [ulysses(ATTEND), ring(ATTEND)])
def test_a_context_of_one_rank_is_plain_attention(block):
    assert launched(block, tensor=2) == launched(ATTEND, tensor=2)


@given(st.integers(1, 4), st.integers(2, 8), st.integers(1, 100), st.integers(0, 100), st.booleans())
@examples(60)
def test_a_ring_has_as_many_pairs_as_attention(count, ranks, piece, cached, causal):
    """Causal or not, and whatever is in the cache: the rounds of all ranks together see each pair once."""
    sizes = {"b": count, "s": 2 * ranks * piece, "z": ranks * (2 * piece + cached)}
    inner = attend(ATTEND.equation, causal=causal)
    whole, = attentions(inner, sizes)
    rounds = attentions(ring(inner), sizes, context=ranks)
    assert len(rounds) == ranks
    assert ranks * sum(round_.pairs for round_ in rounds) == whole.pairs


def test_a_ring_passes_keys_and_values_on_while_it_computes():
    """After each of 4 rounds but the last."""
    found = tasks(ring(ATTEND), tensor=2, context=4)
    shifts = [task for task in found if isinstance(task.kernel, Collective)]
    assert [task.kernel for task in shifts] == [Collective("shift", 2 * KEYS / 8, "context")] * 3
    for place, task in enumerate(found):
        if task in shifts:
            assert task.beside in found[:place]
            assert task.beside.kernel in attentions(ring(ATTEND), tensor=2, context=4)


def test_a_ring_may_wait_for_its_messages():
    assert not any(task.beside for task in tasks(ring(ATTEND, overlap=False), context=4))


def test_rounds_are_merged_in_fp32():
    merges = [kernel for label, kernel in launched(ring(ATTEND), context=2) if label == "attention_merge"]
    values = QUERIES // 2 // 2
    assert [(kernel.read_bytes, kernel.write_bytes, kernel.rows) for kernel in merges] == [
        (6 * values, 4 * values, 2048)]


@pytest.mark.parametrize("make, problem", [
    (lambda: ulysses(attend("bsh,bzh,bzh->bsh")), "index 'K' of the heads, which ulysses splits, is not in it"),
    (lambda: ulysses(op("bKrsh,bKzh->bKrsz", overlap_stage=2, overlap_sms=1)),
     "overlap_stage has no meaning inside ulysses"),
    (lambda: ulysses(attend(ATTEND.equation, {"b": "context"})),
     "index 'b' is split by 'context', by which ulysses splits heads"),
    (lambda: ulysses(op("bsKrh,Krhm->bsm")), "the result that leaves ulysses has no heads 'K'"),
    (lambda: ring(attend(ATTEND.equation, window=8)), "a ring has no window"),
    (lambda: ring(attend(ATTEND.equation, {"K": "context"})),
     "index 'K' is split by 'context', as the ring's tokens are"),
    (lambda: ring(ATTEND, by="data"), "'data' is no group of ranks"),
])
def test_blocks_that_make_no_sense(make, problem):
    with pytest.raises(ValueError) as error:
        make()
    assert problem in str(error.value)


@pytest.mark.parametrize("make", [ulysses, lambda: ulysses([ATTEND]), lambda: ring(op("bKrsh,bKzh->bKrsz"))])
def test_what_blocks_do_not_take(make):
    with pytest.raises((ValueError, TypeError), match="attend|FusedAttention"):
        make()


def test_tokens_and_heads_that_do_not_divide():
    with pytest.raises(ConfigError, match="index 'K' has size 1, which does not divide over 2 ranks"):
        launched(ulysses(ATTEND), tensor=8, context=2)
    with pytest.raises(ConfigError, match="attention: index 's' has size 4096, which does not divide over 3 ranks"):
        launched(ring(ATTEND), context=3)
    with pytest.raises(ConfigError, match="index 's' leaves 3 causal tokens a rank, which do not divide into two"):
        launched(ring(ATTEND), {"s": 6, "z": 6}, context=2)

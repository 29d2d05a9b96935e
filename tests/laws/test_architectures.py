"""Whatever the architecture: arithmetic, weights, cache and shards of each structure of models agree.

Models of one structure have the same operations in other sizes; tests/compute/test_published.py has all models.
"""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from ksim.compute.graph import Collective
from ksim.compute.latent import AttendCompressed, AttendLatent, AttendSparse, Keep
from ksim.compute.notation import Weighted
from ksim.compute.notation.attention import FusedAttention
from ksim.compute.notation.communicate import Combine, Communicate
from ksim.compute.notation.pointwise import Elementwise, Lookup
from ksim.compute.notation.product import HeldWeights, Product
from ksim.compute.recurrent import AttendLinear, AttendMamba, AttendMamba2, Convolve
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch
from ksim.foundation.units import DType
from ksim.specs.shard import Shard
from tests.models import model_of as model
from tests.models import representatives

NAMES = representatives()
WHOLE = Shard()
#: Families that multiply activations with weights, and with each other.
PRODUCTS, ATTENTION = ("gemm", "grouped_gemm", "batched_gemm"), (
    "attention", "mla", "sparse_mla", "compressed_mla", "block_sparse",
    "delta_prompts", "delta_decodes", "ssd_prompts", "ssd_decodes", "scan_prompts",
    "scan_decodes")
#: Operations of layers with states that have weights, of which each token meets some in no product.
STATES = (AttendCompressed, AttendLinear, AttendMamba, AttendMamba2, Convolve)
#: A family of attention that every rank computes whole, and operations whose cache every rank keeps whole.
INDEX, REPLICATED = "index_scores", (AttendLatent, AttendSparse, Keep)
#: Two decodes and a chunk of a prompt, all of which sample.
BATCH = Batch.of((1, 700), (1, 5000), (61, 200))


@cache
def launches(name: str, shard: Shard = WHOLE, batch: Batch = BATCH):
    return list(model(name).graph(batch.tokens, batch.sequences, shard).over(batch))


def flops(name: str, *families: str, shard: Shard = WHOLE, batch: Batch = BATCH) -> float:
    return sum(kernel.work.flops for _, kernel in launches(name, shard, batch) if kernel.family in families)


def operations(name: str):
    decoder = model(name).decoder
    return [*decoder.embedding, *(op for layer in decoder.layers for op in layer), *decoder.head]


def weighted(name: str):
    return [op for op in operations(name) if isinstance(op, Weighted)]


def of_products(name: str) -> int:
    """Active parameters that meet a token in a matrix product.

    Not norms, convolutions, sinks, corrections or biases, nor an embedding that is not the head too.
    """
    sizes = Sizes(model(name).decoder.sizes)
    looked_up = sum(op.parameters(sizes) for op in operations(name) if isinstance(op, Lookup)
                    and not (model(name).decoder.tied and op.label == "embedding"))
    others = sum(op.parameters(sizes) for op in operations(name)
                 if isinstance(op, (Elementwise, FusedAttention, HeldWeights, *STATES)))
    active = Sizes({**sizes.of, "E": model(name).decoder.top_k})
    biases = sum(op.biases(active if op.routed else sizes, WHOLE) for op in operations(name) if isinstance(op, Product))
    return model(name).active_parameters() - others - biases - looked_up


@pytest.mark.parametrize("name", NAMES)
def test_products_take_two_flop_for_each_active_weight_and_token(name):
    """A batch with logits for all of its tokens: 40 decodes."""
    batch = Batch.of(*[(1, 100 * i) for i in range(40)])
    assert flops(name, *PRODUCTS, batch=batch) == 2 * of_products(name) * batch.tokens


@pytest.mark.parametrize("name", NAMES)
def test_all_flop_are_those_of_products_and_attention_but_for_a_few_per_cent(name):
    whole = sum(kernel.work.flops for _, kernel in launches(name))
    assert whole == pytest.approx(flops(name, *PRODUCTS, *ATTENTION, INDEX), rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_products_read_every_active_weight(name):
    """Of mixtures one token sees its own experts' alone."""
    batch = Batch.of((1, 100))
    reads = sum(kernel.work.reads for _, kernel in launches(name, batch=batch)
                if kernel.family in PRODUCTS)
    assert reads == pytest.approx(2 * of_products(name), rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_written_is_the_cache_held(name):
    written = sum(kernel.work.writes for _, kernel in launches(name) if kernel.family == "kv_write")
    assert written == BATCH.tokens * model(name).cache_per_token(WHOLE)


@pytest.mark.parametrize("name", NAMES)
def test_tensor_shards_sum_to_the_whole(name):
    """Up to what every rank holds: norms, routers, latent vectors with the projections down to them, biases of what the
    ranks add up, the vectors of states that all heads share, and a row that fills up an odd vocabulary."""
    half, sizes = Shard(tensor=2), Sizes(model(name).decoder.sizes)
    shared = sum(op.weights(sizes, WHOLE) for op in weighted(name) if not getattr(op, "parallel", ""))
    shared += sum(2 * op.biases(sizes, half) - op.biases(sizes, WHOLE) for op in operations(name)
                  if isinstance(op, Product) and op.parallel) * DType.BF16.bytes
    heads_norms = sum(2 * op.weights(sizes, half) - op.weights(sizes, WHOLE) for op in operations(name)
                      if isinstance(op, Elementwise) and op.scale and op.parallel)
    shared += sum(2 * op.weights(sizes, half) - op.weights(sizes, WHOLE) for op in weighted(name)
                  if getattr(op, "parallel", "") in ("G", (("G", "tensor"),)) and alone(name))
    shared += sizes.of["V"] % 2 * sizes.of["m"] * DType.BF16.bytes * (2 - model(name).decoder.tied)
    assert 2 * model(name).weights(half) - model(name).weights(WHOLE) == shared + heads_norms
    shared_cache = sum(op.cache_per_token(sizes, WHOLE) for op in operations(name) if isinstance(op, REPLICATED))
    assert 2 * model(name).cache_per_token(half) - model(name).cache_per_token(WHOLE) == shared_cache
    scores = sum(2 * 61 * op.chunk * sizes.of["N"] for op in operations(name) if isinstance(op, AttendMamba2))
    assert 2 * flops(name, *ATTENTION, shard=half) == flops(name, *ATTENTION) + alone(name) * scores


def alone(name: str) -> bool:
    """Whether all heads of Mamba-2 are one group, whose vectors and scores every rank has."""
    return model(name).decoder.sizes.get("G") == 1


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_sends_nothing_and_two_sum_what_they_contract(name):
    assert not [kernel for _, kernel in launches(name) if isinstance(kernel, Collective)]
    messages = [kernel for label, kernel in launches(name, Shard(tensor=2)) if isinstance(kernel, Collective)
                and label not in ("qk_norm_all_reduce", "squares_all_reduce")]
    assert [message.bytes for message in messages if message.kind == "all_reduce"] == list(summed(name))


def summed(name: str) -> Iterator[int]:
    """Bytes of results that ranks add up: of the embedding, of products that contract what is split, and of experts."""
    sizes = Sizes({**model(name).decoder.sizes, "t": BATCH.tokens})
    for op in operations(name):
        result = f"t{op.hidden}" if isinstance(op, Combine) else ""
        if isinstance(op, Lookup) and op.parallel:
            result = op.equation.partition("->")[2]
        if isinstance(op, Communicate) and op.kind == "all_reduce" and op.label != "qk_norm_all_reduce":
            result = op.tensor
        if isinstance(op, Product) and op.reduced and {*dict(op.parallel)} - {*op.tensors.results[0]}:
            result = op.tensors.results[0]
        if result:
            yield 2 * sizes.volume(result)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_one_after_another_are_the_whole(name, stages):
    shards = [Shard(stage=stage, stages=stages) for stage in range(stages)]
    staged = [launch for shard in shards for launch in launches(name, shard)]
    sends = [launch for launch in staged if launch[0].startswith("send_")]
    assert [launch for launch in staged if launch not in sends] == launches(name)
    assert len(sends) == 2 * (stages - 1) and all(kernel.kind == "send" for _, kernel in sends)
    copied_head = model(name).decoder.tied * 2 * Sizes(model(name).decoder.sizes).volume("mV")
    assert sum(model(name).weights(shard) for shard in shards) == model(name).weights(WHOLE) + copied_head


@pytest.mark.parametrize("name", NAMES)
def test_more_tokens_are_never_less_work(name):
    def work(tokens: int) -> tuple[float, float]:
        kernels = [kernel.work for _, kernel in launches(name, batch=Batch.of((tokens, 300)))]
        return sum(each.flops for each in kernels), sum(each.bytes for each in kernels)

    steps = [work(tokens) for tokens in (2, 3, 64, 65, 500)]
    assert all(less[0] < more[0] and less[1] < more[1] for less, more in pairwise(steps))


@pytest.mark.parametrize("name", NAMES)
def test_launches_of_a_layer_can_be_told_apart(name):
    layers: set[Any] = {*model(name).decoder.layers}
    for layer in layers:
        labels = [op.label for op in layer]
        assert len(labels) == len(set(labels))

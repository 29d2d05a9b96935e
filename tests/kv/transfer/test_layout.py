"""Which GPU gets what from which other."""

from collections import Counter

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.features.offloading import kv_layout
from ksim.kv.transfer.transfer import KvLayout, LayerShare, Piece, plan
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from tests.kv.transfer.fleets import requests
from tests.properties import examples

POWERS = st.sampled_from([1, 2, 4, 8])


def layout(ranks: int, heads: int, stages: int = 1, layers: int = 8) -> KvLayout:
    """That of an engine of a model with so many KV heads of one byte each."""
    slices = min(ranks, heads)
    return KvLayout(ranks, tuple(LayerShare(layer * stages // layers, heads / slices, slices)
                                 for layer in range(layers)))


def test_equal_engines_send_rank_to_rank():
    assert plan(layout(4, 8), layout(4, 8)) == tuple(Piece(rank, rank, 16.0, 0.0) for rank in range(4))


def test_each_gpu_gets_its_heads_from_those_that_hold_them():
    assert [(piece.source, piece.target, piece.per_token) for piece in plan(layout(2, 8), layout(4, 8))] == [
        (0, 0, 16), (0, 1, 16), (1, 2, 16), (1, 3, 16)]
    assert [(piece.source, piece.target, piece.per_token) for piece in plan(layout(4, 8), layout(2, 8))] == [
        (0, 0, 16), (1, 0, 16), (2, 1, 16), (3, 1, 16)]


def test_what_all_ranks_hold_is_sent_once_to_each_from_different_ones():
    """A latent, as of MLA, is whole on each GPU."""
    assert [(piece.source, piece.target, piece.per_token) for piece in plan(layout(4, 1), layout(2, 1))] == [
        (0, 0, 8), (1, 1, 8)]
    assert [(piece.source, piece.target) for piece in plan(layout(2, 1), layout(4, 1))] == [
        (0, 0), (0, 2), (1, 1), (1, 3)]


def test_stages_send_their_layers_to_the_stages_that_hold_them():
    assert [(piece.source, piece.target, piece.per_token) for piece in plan(layout(1, 1), layout(1, 1, stages=2))] == [
        (0, 0, 4), (0, 1, 4)]
    assert [(piece.source, piece.target) for piece in plan(layout(2, 8, stages=2), layout(2, 8, stages=2))] == [
        (0, 0), (1, 1), (2, 2), (3, 3)]


@given(source=POWERS, target=POWERS, heads=POWERS, stages=st.tuples(st.sampled_from([1, 2, 4]),
                                                                    st.sampled_from([1, 2, 4])))
@examples(100)
def test_each_gpu_gets_all_that_it_holds(source, target, heads, stages):
    here, there = layout(source, heads, stages[0]), layout(target, heads, stages[1])
    got: Counter[int] = Counter()
    for piece in plan(here, there):
        got[piece.target] += piece.per_token
        assert piece.source < source * stages[0]
    assert sum(got.values()) == pytest.approx(there.per_token)
    assert len({round(amount, 6) for amount in got.values()}) == 1 and len(got) == target * stages[1]


@pytest.mark.parametrize(("name", "ranks", "slices"), [
    ("llama-3.1-8b", 4, 4), ("llama-3.1-8b", 16, 8), ("deepseek-v3", 8, 1), ("qwen3-235b-a22b", 8, 4)])
def test_layouts_say_how_many_ranks_hold_the_same(name, ranks, slices):
    serve = {"tensor_parallel_size": ranks, "quantization": "fp8"}
    deployment = Deployment.of(Scenario.of({"model": name, "gpu": "b200", "nodes": 2, "serve": serve,
                                            "workload": requests()}))
    made = kv_layout(deployment)
    assert {layer.slices for layer in made.layers} == {slices} and made.ranks == ranks
    (shard,) = deployment.shards
    assert made.per_token == pytest.approx(ranks * deployment.model.cache_per_token(evolve(shard)))

"""Interpolated costs of expert kernels against those of the same rows priced directly."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from attrs import evolve

from ksim.compute.expert_draws import Drawn, ExpertDraws, mixture_layers
from ksim.compute.expert_rows import Mixture, fullest_rank
from ksim.compute.model import routed
from ksim.compute.sizes import Sizes
from ksim.cost.expert_times import ExpertTimes
from ksim.cost.step import StepTimer
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.specs.shard import Placement, Routing
from tests.cost.timers import Seconds
from tests.scenario.tables import TABLE

UNIFORM, LINEAR = Routing(), Placement()


@cache
def timer(model: str, routing=UNIFORM, placement=LINEAR, oracle: str = "measured", **serve: int) -> StepTimer:
    ranks = serve.get("data_parallel_size", 1) * serve.get("tensor_parallel_size", 1)
    table = {**TABLE, "model": model, "nodes": max(1, ranks // 8),
             "serve": {"max_model_len": 8192, "enable_expert_parallel": True, **serve}}
    made = Deployment.of(Scenario.of(table)).timers()[0]
    own = Seconds() if oracle == "own" else plugin("oracles", Choice(oracle))
    return evolve(made, shard=evolve(made.shard, routing=routing, placement=placement), oracle=own)


def directly(timer: StepTimer, labels, layer: int, tokens: int, slots):
    """The costs of one rank's kernels of these *labels* in a layer of the model."""
    rows = tuple(sorted(((rows, count) for rows, count in Counter(slots.tolist()).items() if rows), reverse=True))
    decoder = timer.model.decoder
    sizes = Sizes({**decoder.sizes, "t": max(1, tokens // timer.shard.data), "T": tokens, "top_k": decoder.top_k})
    launches = [(op.label, op.kernel) for operation in decoder.layers[layer]
                for op in operation.lower(routed(sizes, rows), timer.shard) if op.label in labels]
    return [cost.costs for cost in timer.pricer.kernels(launches)]


CASES = [
    ("deepseek-v3", {"data_parallel_size": 8}, Placement(), Routing(1.0, deviation=0.3)),
    ("deepseek-v3", {"data_parallel_size": 96}, Placement("balanced", 32), Routing(0.5)),
    ("qwen3-30b-a3b", {"data_parallel_size": 8}, Placement(), Routing()),
    ("gpt-oss-20b", {"tensor_parallel_size": 4, "expert_parallel_size": 2}, Placement(), Routing(0.5))]


@pytest.mark.parametrize("oracle", ["measured", "learned", "own"])
@pytest.mark.parametrize("model, serve, placement, routing", CASES)
def test_interpolated_costs_are_those_of_the_rows_priced_directly(model, serve, placement, routing, oracle):
    """Within 2 % in seconds and 8 % in joules: tiles of energy are filled up otherwise than those of time."""
    made = timer(model, routing, placement, oracle, **serve)
    times, draws = ExpertTimes(made), ExpertDraws.of(made.model, made.shard, 1)
    layers, random = mixture_layers(made.model, made.shard), np.random.default_rng(1)
    for tokens in (37, 64 * made.shard.data, 1024 * made.shard.data):
        drawn = draws.draw(tokens)
        costs = times.costs(drawn)
        assert costs.seconds.shape == drawn.rows.shape and (costs.compute_bound <= costs.seconds * 1.0001).all()
        assert ((costs.seconds == 0) == (drawn.rows == 0)).all()
        for place, rank in random.permutation(np.argwhere(drawn.rows))[:25]:
            direct = directly(made, times.labels, layers[place], tokens, drawn.slots[place, rank])
            assert costs.seconds[place, rank] == pytest.approx(sum(each.seconds for each in direct), rel=0.02)
            assert costs.joules[place, rank] == pytest.approx(sum(each.joules for each in direct), rel=0.08)


@pytest.mark.parametrize("model", ["deepseek-v3", "gpt-oss-20b"])
def test_the_labels_are_those_of_launches_that_differ_by_rank(model):
    made = timer(model, data_parallel_size=8)
    means = {op.label for block in made.model.body(64, made.shard) for op in block.ops if op.mean is not None}
    assert {*ExpertTimes(made).labels} == means


def test_the_fullest_rank_of_a_step_costs_what_the_step_says():
    """The rows by which a step is priced, as if they had been drawn."""
    made = timer("qwen3-30b-a3b", data_parallel_size=8)
    mixture = Mixture(8, 128, Routing(), 8)
    rows = np.repeat(*np.array(fullest_rank(512, mixture)).T)
    slots = np.zeros((48, 8, 16), dtype=np.int64)
    slots[:, :, : len(rows)] = rows
    times = ExpertTimes(made)
    ops = [op for block in made.model.body(64, made.shard) for op in block.ops
           if op.mean is not None for _ in range(block.repeat)]
    whole = sum(cost.seconds for cost in made.pricer.kernels([(op.label, op.kernel) for op in ops]))
    assert times.seconds(Drawn(512, np.zeros((48, 128)), slots))[:, 3].sum() == pytest.approx(whole, rel=0.005)


def test_costs_depend_on_the_rows_alone_and_not_on_what_was_asked_before():
    made = timer("qwen3-30b-a3b", Routing(1.0), data_parallel_size=8)
    draws, used = ExpertDraws.of(made.model, made.shard, 1), ExpertTimes(made)
    steps = [draws.draw(tokens) for tokens in (64, 5000, 64)]
    first = [used.seconds(drawn) for drawn in steps]
    for drawn, seconds in zip(steps, first, strict=True):
        assert ExpertTimes(made).seconds(drawn) == pytest.approx(seconds, rel=1e-12)


def test_rows_of_other_layers_are_refused():
    made = timer("qwen3-30b-a3b", data_parallel_size=8)
    with pytest.raises(ValueError, match="rows of 3 layers are not those of the timer's stage"):
        ExpertTimes(made).costs(Drawn(1, np.zeros((3, 128)), np.ones((3, 8, 16), dtype=np.int64)))

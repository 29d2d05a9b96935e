"""EnergyLens: the energy of fixed batches, which of them fit, and the Pareto front of energy and latency."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.energylens.batches import BatchPoint, Bench, Survey, front, spread
from ksim.flow.batch import Batch

few = st.integers(1, 9).map(float)
points = st.lists(st.builds(BatchPoint, st.just("decode"), st.just(2), st.integers(1, 4), st.just(100), few, few),
                  min_size=1)


@cache
def bench(tensor: int) -> Bench:
    return Bench.of("llama-3.1-70b", tensor)


def beats(one: BatchPoint, other: BatchPoint) -> bool:
    pair, pair_of_other = ((each.seconds, each.joules_per_token) for each in (one, other))
    return pair != pair_of_other and all(ours <= theirs for ours, theirs in zip(pair, pair_of_other, strict=True))


@given(points)
def test_the_front_is_what_nothing_beats(every):
    best = front(every)
    assert not any(beats(one, other) for one in every for other in best)
    kept = {(point.seconds, point.joules_per_token) for point in best}
    assert len(kept) == len(best)
    assert all(any(beats(one, point) for one in best) or (point.seconds, point.joules_per_token) in kept
               for point in every)


@given(points)
def test_the_spread_is_that_of_energy_per_token(every):
    costs = [point.joules / point.batch for point in every]
    assert spread(every) == pytest.approx(max(costs) / min(costs))


def test_joules_are_those_of_all_gpus_with_their_idle_power():
    """Decodes stay below the limit, so that the clock is the boost clock."""
    point = bench(8).decode(4, 1000)
    timeline = bench(8).deployment.timers()[0].step_cost(Batch.of(*[(1, 1000)] * 4))
    assert point.joules == pytest.approx(8 * (timeline.joules + 70.0 * timeline.seconds))
    assert point.seconds == timeline.seconds
    assert (point.tokens, bench(8).prefill(4, 1000).tokens) == (4, 4000)


def test_no_gpu_draws_more_than_its_limit():
    assert bench(2).prefill(4, 4096).watts == pytest.approx(400.0, rel=2e-3)


def test_collectives_take_a_smaller_share_of_energy_than_of_time():
    """They draw less power than other kernels."""
    point = bench(8).prefill(1, 4096)
    assert 0 < point.exchanged < point.exchanging < 1
    assert point.exchange_watts == pytest.approx(point.watts * point.exchanged / point.exchanging)


def test_batches_that_do_not_fit_are_left_out():
    """The weights leave each of two GPUs about 5 GB for cache and activations."""
    assert bench(2).holds(4, 4096) and not bench(2).holds(64, 4096)
    assert bench(8).holds(64, 4096)
    assert not bench(2).holds(16, 1024, at_once=200_000)
    survey = Survey.of("llama-3.1-70b", tensors=(2, 8), batches=(4, 64), lengths=(4096,))
    assert [(point.gpus, point.batch) for point in survey.decodes] == [(2, 4), (8, 4), (8, 64)]

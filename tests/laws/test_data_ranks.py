"""Data ranks that share experts: what all of their GPUs do is counted, whichever of them have the tokens."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from attrs import evolve

from ksim.compute.blocks import experts
from ksim.compute.model import Config
from ksim.engine import stage_recorder
from ksim.engine.event_engine import dummy_of
from ksim.flow.batch import Batch
from ksim.flow.events import Stepped
from ksim.results.activity import EXPERTS, Shares
from ksim.results.energy import Energy
from ksim.scenario.defaults import Deployment
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import play, simulate
from ksim.views.result import Result

RANKS = 4


def scenario(count: int = 1, model: str = "qwen3-30b-a3b", sigma: float = 0.0, oracle: str = "roofline",
             **serve) -> Scenario:
    """*count* requests at once, one after another to each rank."""
    prompt = {"kind": "lognormal", "median": 300, "sigma": sigma} if sigma else {"kind": "fixed", "value": 300}
    return Scenario.of({
        "model": model, "gpu": "h200", "oracle": oracle,
        "serve": {"data_parallel_size": RANKS, "max_model_len": 8192, "enforce_eager": True, **serve},
        "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 1000}, "count": count, "max_tokens": 4000,
                                   "prompt": prompt, "output": {"kind": "fixed", "value": 6}}}})


def gemm_flops(result: Result) -> float:
    families = result.usage.of_kinds(lambda kind: "gemm" in kind.family)
    return float((result.usage.counts(result.history.steps.stage_ranks) * families
                  * result.usage.kernels.costs.flops).sum())


@pytest.mark.parametrize("count, sigma", [(1, 0.0), (2, 1.5), (7, 1.5), (4, 0.0)])
def test_all_ranks_together_do_2_flop_for_each_active_weight_and_token(count, sigma):
    """Embeddings are looked up, and the head sees one token of each sequence; norms, a ten-thousandth, are not in it.

    Every rank without tokens computes one, whose logits nobody asks for.
    """
    result = simulate(scenario(count, sigma=sigma))
    model, steps = model_of("qwen3-30b-a3b"), result.history.steps
    head = model.decoder.sizes["m"] * model.decoder.sizes["V"]
    computed = steps.tokens.sum() + (steps.tokens == 0).sum()
    assert len(steps) % RANKS == 0
    expected = 2 * (model.active_parameters() - 2 * head) * computed + 2 * head * (steps.decodes + steps.prefills).sum()
    assert gemm_flops(result) == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "mixtral-8x7b"])
@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize("ranks", [
    [[(6000, 0)], [], [], []], [[(600, 0)], [(1, 50), (1, 70)], [], []], [[(1, 50)], [(1, 50)], [(1, 60)], [(9, 60)]],
])
def test_ranks_do_together_what_one_gpu_would(model, dealt, ranks):
    """Of the same sequences, dummies included but for their logits.  Routing alone, which each rank repeats, adds 0.1 %
    at most."""
    together = Deployment.of(scenario(model=model, enable_expert_parallel=dealt)).timers()[0]
    alone = Deployment.of(scenario(model=model, data_parallel_size=1)).timers()[0]
    batches = [Batch.of(*own) if own else dummy_of(1) for own in ranks]
    brought = [batch.tokens for batch in batches]
    union = Batch.of(*(each for own in ranks for each in own or [(1, 0)]), samples=sum(map(len, ranks)))
    flops = sum(together.step_cost(batch, brought).flops for batch in batches)
    sizes = alone.model.decoder.sizes
    dummies_heads = 2 * sizes["m"] * sizes["V"] * ranks.count([])
    expected = alone.step_cost(union).flops - dummies_heads
    assert flops == pytest.approx(expected, rel=1e-3)
    assert flops >= expected * (1 - 1e-9)


def test_one_busy_rank_keeps_all_gpus_at_work():
    """With graphs, all ranks replay the same: four ranks draw what they draw where each has a request of its own, but
    for heads and attention."""
    one, four = (simulate(scenario(count, enforce_eager=False)).summary for count in (1, RANKS))
    assert one["gpu_busy_share"] > 0.9 * four["gpu_busy_share"] > 0.5
    watts = [run["dynamic_energy_joules"] / run["duration"] for run in (one, four)]
    assert 0.7 < watts[0] / watts[1] < 1.0
    assert one["steps"] == 6
    assert one["mean_batch_tokens"] == pytest.approx(305 / 6)


@pytest.mark.parametrize("count, serve", [
    (1, {}), (3, {"pipeline_parallel_size": 2}), (9, {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
    (9, {"async_scheduling": False, "num_gpu_blocks_override": 300, "max_num_batched_tokens": 256})])
def test_every_joule_is_a_requests_or_idle(count, serve):
    result = simulate(scenario(count, sigma=1.0, **serve))
    energy = Energy(Shares(result.history, result.usage))
    total = result.summary["energy_joules"]
    assert float(energy.joules.sum()) + energy.idle == pytest.approx(total, rel=1e-9)
    assert float(energy.requests.sum()) + energy.unattributed + energy.idle == pytest.approx(total, rel=1e-9)
    assert energy.unattributed == pytest.approx(0.0, abs=0.03 * total)
    dummies = result.history.steps.tokens == 0
    assert dummies.any()
    assert not energy.joules[dummies].any()


def test_experts_of_all_ranks_are_charged_to_those_whose_tokens_they_compute():
    """Found by walking every span of every step: a round's joules on experts, and all of its dummies', by tokens."""
    result = simulate(scenario(3, sigma=1.5))
    steps, found = list(result.log.of(Stepped)), Energy(Shares(result.history, result.usage)).joules.sum(axis=1)
    watts = result.log.engines[0].static_watts
    shared, tokens, own = Counter(), Counter(), []
    for step in steps:
        (timeline,), (pace,) = step.step_costs, step.scalings
        spent = {span.label in EXPERTS: 0.0 for span in timeline}
        for span in timeline:
            seconds = span.seconds * (pace.time if span.is_compute_bound else 1.0)
            spent[span.label in EXPERTS] += span.joules_at(pace) + watts * (step.end - step.start) * (
                seconds / timeline.seconds_at(pace))
        pooled = sum(spent.values()) if not step.batch.tokens else spent[True]
        shared[step.end] += pooled
        tokens[step.end] += step.batch.tokens
        own.append(sum(spent.values()) - pooled)
    expected = [alone + shared[step.end] * step.batch.tokens / tokens[step.end]
                for step, alone in zip(steps, own, strict=True)]
    assert found == pytest.approx(expected, rel=1e-6)


def test_labels_of_experts_are_those_that_models_have():
    """The kernels of a mixture that run on the tokens of all data ranks, by their labels."""
    config = Config("any", {"num_experts": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2})
    operations: Iterable[Any] = experts(config)
    labels = {operation.label for operation in operations}
    assert labels - EXPERTS == {"router", "dispatch", "experts"}
    assert labels >= EXPERTS


@pytest.mark.parametrize("model, serve", [
    ("qwen3-30b-a3b", {"enable_expert_parallel": True}), ("deepseek-v2-lite", {}),
    ("deepseek-v2-lite", {"pipeline_parallel_size": 2, "async_scheduling": True})])
def test_steps_priced_many_at_once_are_those_priced_one_by_one(model, serve, monkeypatch):
    """Every kernel of every step of a group costs the same, of dummies too."""
    monkeypatch.setattr(stage_recorder, "ENOUGH", 16)
    made = scenario(12, model=model, sigma=1.0, oracle="measured", enforce_eager=False, **serve)
    together, one_by_one = (play(evolve(Deployment.of(made), skips=skips), made.workload.requests(made.seed))
                            for skips in (True, False))
    assert together.summary == {name: pytest.approx(value, rel=1e-9, nan_ok=True) if isinstance(value, float) else value
                                for name, value in one_by_one.summary.items()}
    for one, other in zip(together.log.of(Stepped), one_by_one.log.of(Stepped), strict=True):
        assert (one.engine, one.index, one.batch, one.waiting, one.blocks) == (
            other.engine, other.index, other.batch, other.waiting, other.blocks)
        assert (one.time, one.end) == pytest.approx((other.time, other.end), rel=1e-9)
        for cost, expected in zip(one.step_costs, other.step_costs, strict=True):
            assert cost.costs.table == pytest.approx(expected.costs.table, rel=1e-9, abs=1e-15, nan_ok=True)
            assert [(kernel.label, str(kernel.shape), kernel.bound, kernel.source) for kernel, _ in cost.counted()] == [
                (kernel.label, str(kernel.shape), kernel.bound, kernel.source) for kernel, _ in expected.counted()]

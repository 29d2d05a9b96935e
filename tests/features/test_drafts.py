"""Engines that speculate: what a step costs beside the target's, what memory the drafter takes, what is refused."""

from functools import cache
from typing import Any

import pytest

from ksim.cost.step import Passes, StepTimer
from ksim.features.drafts import drafter_of, drafter_shard
from ksim.features.offloading import kv_layout
from ksim.flow.batch import Batch
from ksim.flow.costs import Costs
from ksim.foundation.errors import ConfigError, DoesNotFit, KsimError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.scenario.sizing import memory
from ksim.simulation.simulate import simulate
from tests.scenario.tables import BURST, TABLE

ACCEPTANCE = {"acceptance": {"name": "geometric", "rate": 0.8}}
#: A drafter of each kind, with the model that it drafts for and the GPUs of both.
SETUPS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "eagle": ("llama-3.1-8b", 1, {"method": "eagle", "model": "eagle-llama-3.1-8b"}),
    "eagle3": ("llama-3.1-8b", 2, {"method": "eagle3", "model": "eagle3-llama-3.1-8b"}),
    "draft_model": ("llama-3.1-8b", 1, {"method": "draft_model", "model": "llama-3.2-1b"}),
    "mtp": ("qwen3-next-80b-a3b", 4, {"method": "mtp"}),
}


def site(model: str, tensor: int, config: dict[str, Any] | None = None, **serve: Any) -> Deployment:
    speculation = {"speculative_config": {**ACCEPTANCE, **config}} if config else {}
    return Deployment.of(Scenario.of({**TABLE, "model": model, "serve": {
        "tensor_parallel_size": tensor, "max_model_len": 8192, **speculation, **serve}}))


@cache
def setup(kind: str, tokens: int = 3) -> Deployment:
    model, tensor, config = SETUPS[kind]
    return site(model, tensor, {**config, "num_speculative_tokens": tokens})


def passes(deployment: Deployment) -> Passes:
    (timer,) = deployment.timers()
    assert isinstance(timer, Passes)
    return timer


@pytest.mark.parametrize("kind", SETUPS)
def test_step_costs_the_targets_verification_and_the_drafters_passes(kind: str) -> None:
    timer, batch = passes(setup(kind)), Batch.of((4, 1000), (4, 3000), (300, 0), width=4)
    target, verify, first, later = timer.main, *timer.others
    alone = [target.step_cost(batch), *(step for other in (verify, first, later)
                                        for step in other.step_costs(batch, ()))]
    assert len(alone) == 1 + 1 + 3
    assert timer.step_cost(batch).costs == sum((step.costs for step in alone[1:]), alone[0].costs)


@pytest.mark.parametrize("kind", SETUPS)
def test_the_target_is_priced_as_without_a_drafter(kind: str) -> None:
    model, tensor, _ = SETUPS[kind]
    (plain,) = site(model, tensor).timers()
    assert isinstance(plain, StepTimer)
    batch = Batch.of((300, 0), (200, 100))
    assert passes(setup(kind)).main.step_cost(batch).costs == plain.step_cost(batch).costs


def test_more_drafts_are_more_passes() -> None:
    batch, seconds = Batch.of((1, 1000)), []
    for tokens in (1, 2, 3):
        labels = [kernel.label for kernel in passes(setup("eagle3", tokens)).step_cost(batch)]
        assert labels.count("draft.lm_head") == tokens and labels.count("draft.fc") == 1
        seconds.append(passes(setup("eagle3", tokens)).step_cost(batch).seconds)
    assert seconds == sorted(seconds)


def test_nothing_is_verified_where_nothing_was_drafted() -> None:
    timer = passes(setup("eagle"))
    assert not any(kernel.label.startswith("verify.") for kernel in timer.step_cost(Batch.of((1, 9), (300, 0))))
    assert any(kernel.label == "verify.resample" for kernel in timer.step_cost(Batch.of((4, 9), width=4)))


@pytest.mark.parametrize("kind", SETUPS)
def test_weights_and_caches_add_up(kind: str) -> None:
    deployment = setup(kind)
    model, serve = deployment.model, deployment.serve
    (shard,), drafter = deployment.shards, drafter_of(model, serve)
    assert drafter is not None
    own = drafter_shard(drafter, serve, shard)
    part = memory(model, shard, deployment.gpu, serve)
    assert part.weights == model.weights(shard) + drafter.weights(own)
    assert part.cache_per_token == model.cache_per_token(shard) + drafter.cache_per_token(own)
    plain = site(*SETUPS[kind][:2])
    assert deployment.kv_blocks < plain.kv_blocks


def test_a_drafters_keys_are_sent_with_its_targets() -> None:
    speculating, plain = (kv_layout(site("llama-3.1-8b", 2, config)) for config in (
        {**SETUPS["eagle3"][2], "num_speculative_tokens": 2}, None))
    assert speculating.layers == (*plain.layers, plain.layers[-1])


def test_a_draft_model_may_be_whole_on_each_gpu() -> None:
    config = {**SETUPS["draft_model"][2], "num_speculative_tokens": 2}
    split, whole = (site("llama-3.1-8b", 2, {**config, **more}) for more in ({}, {"draft_tensor_parallel_size": 1}))
    assert whole.kv_blocks < split.kv_blocks
    assert not any(kernel.group for kernel in passes(whole).step_cost(Batch.of((1, 9)))
                   if kernel.label.startswith("draft."))


def test_drafters_quantization_is_its_own() -> None:
    config = {**SETUPS["draft_model"][2], "num_speculative_tokens": 2}
    plain, quantized = (site("llama-3.1-8b", 1, {**config, **more}) for more in ({}, {"quantization": "fp8"}))
    assert plain.kv_blocks < quantized.kv_blocks
    (shard,) = plain.shards
    assert memory(plain.model, shard, plain.gpu, plain.serve).weights > memory(
        quantized.model, shard, quantized.gpu, quantized.serve).weights


@pytest.mark.parametrize(("model", "config", "text"), [
    ("llama-3.1-8b", {"method": "draft_model", "model": "qwen3-0.6b"}, "target and draft model should have the same"),
    ("llama-3.1-8b", {"method": "mtp"}, "has no modules that predict further tokens"),
    ("qwen3-8b", {"method": "eagle", "model": "eagle-llama-3.1-8b"}, "one for another model"),
    ("llama-3.1-8b", {"method": "eagle", "model": "no-such-head"}, "no-such-head"),
    ("llama-3.1-8b", {"method": "eagle", "model": "eagle-llama-3.1-8b", "draft_tensor_parallel_size": 2}, "neither 1"),
    ("llama-3.1-8b", {"method": "eagle", "model": "eagle-llama-3.1-8b", "quantization": "gguf"}, "'gguf' is none of"),
    ("llama-3.1-8b", {"method": "eagle", "model": "eagle-llama-3.1-8b", "kv_cache_dtype": "int2"}, "'int2' is none of"),
])
def test_what_vllm_refuses_is_refused_by_name(model: str, config: dict[str, Any], text: str) -> None:
    with pytest.raises(KsimError, match=text):
        site(model, 1, {"num_speculative_tokens": 2, **config})


def test_drafts_must_divide_among_modules(tmp_path: Any) -> None:
    import json

    from ksim.foundation import catalog

    table = {**catalog.load("models", "deepseek-v3"), "num_nextn_predict_layers": 2}
    path = tmp_path / "two.json"
    path.write_text(json.dumps(table))
    with pytest.raises(ConfigError, match="3 must be divisible by the 2 modules"):
        site(str(path), 8, {"method": "mtp", "num_speculative_tokens": 3})
    labels = [kernel.label for kernel in passes(site(str(path), 8, {"method": "mtp", "num_speculative_tokens": 2}))
              .step_cost(Batch.of((300, 0)))]
    assert labels.count("draft.eh_proj") == 2


def test_a_drafter_that_does_not_fit_is_refused() -> None:
    config = {"method": "draft_model", "model": "llama-3.1-70b", "num_speculative_tokens": 2}
    with pytest.raises(DoesNotFit, match="weights"):
        site("llama-3.1-8b", 1, config).check_memory()


def test_n_grams_take_no_memory() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    assert site("llama-3.1-8b", 1, config).kv_blocks == site("llama-3.1-8b", 1).kv_blocks


def test_n_grams_are_looked_up_in_all_tokens() -> None:
    timer = passes(site("llama-3.1-8b", 1, {"method": "ngram", "num_speculative_tokens": 3}))
    step = timer.step_cost(Batch.of((4, 1000), (4, 3000), (300, 50), width=4))
    (scan,) = [kernel for kernel in step if kernel.label == "draft.scan"]
    assert scan.bytes == pytest.approx(4 * (1004 + 3004 + 350), rel=0.01)
    assert [kernel.label for kernel in step][-2:] == ["draft.best_match", "gaps"]


def test_data_ranks_share_the_experts_of_a_module() -> None:
    """Ranks of a replica pass over tokens of their own; the experts of all passes are shared."""
    deployment = site("qwen3-next-80b-a3b", 1, {"method": "mtp", "num_speculative_tokens": 2},
                      data_parallel_size=4, enable_expert_parallel=True)
    timer, batch = passes(deployment), Batch.of(*[(3, 1000)] * 8, width=3)
    alone = timer.step_cost(batch, [24, 24, 24, 24])
    busier = timer.step_cost(batch, [24, 900, 900, 900])
    assert {kernel.group for kernel in alone if kernel.label.startswith("draft.")} > {""}
    assert busier.seconds > alone.seconds
    assert Costs.of() != alone.costs


def test_ranks_play_the_kernels_of_all_passes() -> None:
    """Where ranks are processes that meet at collectives, a step takes as long as its price says."""
    table = {**TABLE, "workload": {"synthetic": {**BURST, "count": 3}}, "serve": {
        "tensor_parallel_size": 2, "max_model_len": 8192,
        "speculative_config": {**ACCEPTANCE, **SETUPS["eagle3"][2], "num_speculative_tokens": 2}}}
    alike = {"detail": "rank", "ranks": {"slow": [{"gpu": 0}, {"gpu": 1}]}}
    whole, ranks = (simulate(Scenario.of({**table, **detail})).summary for detail in ({}, alike))
    assert ranks["mean_tpot_ms"] == pytest.approx(whole["mean_tpot_ms"], rel=1e-6)
    assert ranks["spec_decode_num_drafts"] == whole["spec_decode_num_drafts"] > 0

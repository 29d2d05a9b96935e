"""The candidates of a plan: which there are, and why others are not."""

import pytest

from ksim.foundation.errors import KsimError, UnknownName
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.specs.shard import QUANTIZATIONS
from ksim.study.grid import SettingValues
from ksim.study.planning.candidates import CHECKPOINTS, GpuKind, candidates, drafting, engines

LOAD = {"synthetic": {"count": 10, "arrivals": {"process": "poisson", "rate": 1.0},
                      "prompt": {"kind": "fixed", "value": 100}, "output": {"kind": "fixed", "value": 10}}}
SCENARIO = Scenario.of({"model": "llama-3.1-8b", "gpu": "h100", "workload": LOAD})


def found(model, *kinds, over=(), engine="vllm-0.33", **serve):
    if engine and all(one.key != "engine" for one in over):
        over = [*over, SettingValues("engine", (engine,))]
    scenario = Scenario.of({"model": model, "gpu": "h100", "serve": {"max_model_len": 4096, **serve}, "workload": LOAD})
    return candidates(scenario, [GpuKind(*kind) if isinstance(kind, tuple) else GpuKind(kind) for kind in kinds], over)


def values(made, key):
    return {family.shared.get(f"serve.{key}") for family in made.families}


def test_formats_are_those_that_a_gpu_multiplies_in():
    assert values(found("llama-3.3-70b", "h100"), "quantization") == {"auto", "fp8"}
    assert values(found("llama-3.3-70b", "b200"), "quantization") == {"auto", "fp8", "nvfp4"}
    assert values(found("llama-3.1-8b", "a100-80g"), "quantization") == {"auto"}
    assert values(found("llama-3.1-8b", "a100-80g"), "kv_cache_dtype") == {"auto"}
    assert values(found("deepseek-v3", "h200"), "quantization") == {"auto"}, "its checkpoint has FP8 weights itself"


def test_what_does_not_fit_is_counted():
    made = found("llama-3.3-70b", "h100")
    assert made.left_out == {"does not fit into the memory": 2}, "BF16 on one H100, with both formats of KV"
    pairs = 2 * 3**2 + 2 * 4**2, "of BF16 on 2, 4 and 8 GPUs, and of FP8 on 1 to 8, with both formats of KV"
    assert made.count == pairs[0] + sum(len(family.own) for family in made.families) > 200


def test_only_mixtures_of_experts_share_experts():
    assert values(found("llama-3.1-8b", "h100"), "enable_expert_parallel") == {None}
    assert values(found("qwen3-30b-a3b", "h100"), "enable_expert_parallel") == {None, True}
    assert {1, 2, 4, 8} <= {one or 1 for one in values(found("qwen3-30b-a3b", "h100"), "data_parallel_size")}


def test_pipeline_stages_are_for_what_no_node_holds():
    assert values(found("llama-3.3-70b", "h100"), "pipeline_parallel_size") == {None}
    stages = {(family.shared["serve.quantization"], family.shared.get("serve.pipeline_parallel_size"))
              for family in found("llama-3.1-405b", "h100").families}
    assert stages == {("auto", 2), ("fp8", None)}


def test_no_engine_is_larger_than_the_gpus_there_are():
    assert max(family.gpus for family in found("llama-3.1-8b", ("h100", 2)).families) == 2


def test_named_values_stand_in_place_of_those_that_are_tried():
    over = [SettingValues("serve.tensor_parallel_size", (2,)), SettingValues("serve.max_num_seqs", (32, 96)),
            SettingValues("engine", ("vllm-0.33", "vllm-0.22"))]
    made = found("llama-3.1-8b", "h100", over=over)
    assert values(made, "tensor_parallel_size") == {2}
    assert {family.shared["engine"] for family in made.families} == {"vllm-0.33", "vllm-0.22"}
    assert {own["serve.max_num_seqs"] for family in made.families for own in family.own} == {32, 96}


def test_what_the_scenario_sets_stays():
    made = found("llama-3.1-8b", "h100", quantization="fp8", max_num_batched_tokens=1000, max_num_seqs=100)
    assert values(made, "quantization") == {"fp8"}
    assert [family.own for family in made.families] == [({},)] * len(made.families)


def test_a_model_that_fits_nowhere_is_refused():
    with pytest.raises(KsimError, match=r"no candidate can be deployed: does not fit into the memory \(\d+ times\)"):
        found("llama-3.1-405b", ("l4", 8))
    with pytest.raises(UnknownName):
        found("llama-3.1-8b", "h101")


@pytest.mark.parametrize("model", CHECKPOINTS)
def test_public_checkpoints_are_of_models_and_formats_that_there_are(model):
    assert model_of(model).decoder.top_k >= 0
    assert {*CHECKPOINTS[model]} <= {*QUANTIZATIONS}
    assert all(len(name.split("/")) == 2 for name in CHECKPOINTS[model].values())


def test_the_newest_release_of_each_engine_is_tried_whose_scheduler_is_simulated():
    made = found("llama-3.1-8b", "h100", over=[SettingValues("serve.tensor_parallel_size", (1,))], engine=None)
    assert {family.shared["engine"] for family in made.families} == set(engines(SCENARIO)) == {
        "vllm-0.33", "sglang-0.5.23"}
    assert engines(SCENARIO.with_values({"engine": "vllm-0.22"})) == ("vllm-0.22",)


def test_each_engine_has_limits_of_its_own():
    over = [SettingValues("serve.tensor_parallel_size", (1,)), SettingValues("serve.max_num_batched_tokens", (4096,))]
    tokens = {family.variants[0].version.scheduler: [one.serve.max_num_batched_tokens for one in family.variants]
              for family in found("llama-3.1-8b", "h100", over=over, engine=None).families}
    assert {*tokens["vllm"]} == {*tokens["sglang"]} == {4096}
    own = {key for family in found("llama-3.1-8b", "h100", over=over[:1], engine="sglang-0.5.23").families
           for one in family.own for key in one}
    assert own == {"serve.sglang.chunked_prefill_size", "serve.sglang.max_running_requests"}


def test_variants_of_sglang_have_the_memory_that_follows_from_their_limits():
    over = [SettingValues("serve.tensor_parallel_size", (1,))]
    family = found("llama-3.1-8b", "h100", over=over, engine="sglang-0.5.23").families[0]
    shares = {one.serve.max_num_batched_tokens: one.serve.sglang.mem_fraction_static for one in family.variants}
    assert shares[2048] > shares[8192] > shares[16384]


def test_a_drafter_is_tried_where_its_acceptance_is_known():
    over = [SettingValues("serve.tensor_parallel_size", (8,)), SettingValues("serve.enable_expert_parallel", (1,)),
            SettingValues("serve.data_parallel_size", (1,)), SettingValues("serve.kv_cache_dtype", ("auto",))]
    made = found("deepseek-v3", "h200", over=over)
    asked = SCENARIO.with_values({"model": "deepseek-v3", "serve.max_model_len": 4096})
    pairs = [*drafting(asked, made.families)]
    assert [base for base, _ in pairs] == [*made.families]
    assert all(one.variants[0].serve.speculative_config.method == "mtp" for _, one in pairs)
    assert not [*drafting(SCENARIO, made.families)], "of Llama, nobody says how many drafts are accepted"
    assert not [*drafting(asked, made.families, [SettingValues("serve.speculative_config", ({},))])]


def test_what_no_engine_takes_is_said_in_full():
    with pytest.raises(KsimError, match="how many drafted tokens are accepted is not known without running the model"):
        found("llama-3.1-8b", "h100", over=[SettingValues("serve.speculative_config", (
            {"method": "eagle3", "model": "eagle3-llama-3.1-8b", "num_speculative_tokens": 2},))])

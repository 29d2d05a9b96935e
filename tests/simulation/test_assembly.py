"""Names become objects, or an error that helps."""

import json

import pytest
import simpy

from ksim.engine.rank_stages import RankStages
from ksim.flow.log import Log
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, KsimError, UnknownName
from ksim.scenario.defaults import Deployment
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.assembly import build
from tests.scenario.tables import TABLE


def deployment(**changes):
    return Deployment.of(Scenario.of({**TABLE, **changes}))


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "lama-3.1-8b"}, "no model named 'lama-3.1-8b'; did you mean 'llama-3.1-8b'?"),
    ({"gpu": "h2000"}, "no gpu named 'h2000'; did you mean 'h200'?"),
    ({"system": "hgx-h2000"}, "no system named 'hgx-h2000'"),
    ({"oracle": "wave"}, "no oracle named 'wave'; did you mean 'waves'?"),
    ({"collectives": ["rings"]}, "no collective named 'rings'; did you mean 'ring'?"),
    ({"energy": {"grid": "us-calso"}}, "no grid named 'us-calso'; did you mean 'us-caiso'?"),
    ({"host": "defalt"}, "no host named 'defalt'; did you mean 'default'?"),
])
def test_an_unknown_name_is_answered_with_the_nearest(changes, message):
    changes = {**changes, "gpu": changes.get("gpu")} if "system" in changes else changes
    with pytest.raises(UnknownName) as caught:
        Deployment.of(Scenario.of({k: v for k, v in {**TABLE, **changes}.items() if v is not None}))
    assert message in str(caught.value)


def test_an_unknown_policy_or_router_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="no policy named 'fcsf'; did you mean 'fcfs'"):
        plugin("scheduling.policies", Choice("fcsf"))
    with pytest.raises(UnknownName, match="no router named 'robin'"):
        plugin("cluster.routers", Choice("robin"))


def test_an_unknown_option_of_a_plugin_is_named():
    with pytest.raises(ConfigError, match="roofline: computes: unknown key; did you mean 'compute'"):
        deployment(oracle={"name": "roofline", "computes": 0.7})


def test_an_architecture_that_ksim_lacks_names_those_it_has(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ConfigError, match="'mamba' is no family that ksim knows; .*ksim knows .* more: docs/models.md"):
        model_of(str(tmp_path / "config.json"))


def test_a_gpu_and_a_system_that_disagree_are_refused():
    with pytest.raises(ConfigError, match="is 'h100', but system 'hgx-h200' has 'h200'"):
        deployment(gpu="h100", system="hgx-h200")


def test_a_gpu_of_ones_own_is_one_file(tmp_path):
    """It takes the place of the GPU in the system that it is made for, there and when the resolved scenario runs."""
    text = (catalog.DATA / "gpus" / "h200.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(text.replace('"H200 SXM"', '"H200 of mine"'), encoding="utf-8")
    built = deployment(gpu=str(tmp_path / "mine.toml"))
    assert (built.gpu.name, built.system.name) == ("H200 of mine", deployment().system.name)
    assert Deployment.of(built.scenario).gpu == built.gpu


def built(**changes):
    env, log = simpy.Environment(), Log()
    build(deployment(**changes), env, log, lambda: None)
    return log.engines[0]


def test_the_log_names_the_power_of_each_engines_gpus():
    power = deployment().gpu.power
    awake, asleep = built(), built(energy={"sleep_after": "2 s"})
    assert (awake.static_watts, awake.limit_watts, awake.reach) == (power.idle, power.limit, power.reach)
    assert awake.sleep_after == float("inf")
    assert (asleep.sleep_watts, asleep.sleep_after) == (power.sleep, 2.0)


def test_a_gpu_without_sleep_power_cannot_be_told_to_sleep():
    assert built(gpu="h100").sleep_after == float("inf")
    with pytest.raises(ConfigError, match=r"energy.sleep_after: H100 SXM.* has no \[power\] sleep"):
        built(gpu="h100", energy={"sleep_after": "1 s"})


def test_tensor_parallelism_must_divide_the_heads():
    with pytest.raises(ConfigError, match="tensor_parallel_size: 3 does not divide 32 attention heads"):
        indivisible = deployment(serve={"tensor_parallel_size": 3})
        indivisible.model.weights(indivisible.shards[0])


def test_a_scenario_that_needs_more_gpus_than_its_system_has_is_refused():
    with pytest.raises(DoesNotFit, match="4 replicas of 4 need 16 GPUs, and HGX H200.* has 8; set nodes to 2"):
        deployment(serve={"tensor_parallel_size": 4, "data_parallel_size": 4})


def test_only_data_ranks_of_a_mixture_share_experts():
    serve = {"tensor_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True}
    mixture = deployment(model="qwen3-30b-a3b", serve=serve)
    dense = deployment(serve={**serve, "enable_expert_parallel": False})
    assert (mixture.shards[0].data, dense.shards[0].data) == (4, 1)
    groups = mixture.groups(0, 2)  # of the second engine
    assert groups["tensor"] == (2, 3) and groups["data"] == (0, 2, 4, 6) and groups["expert"] == tuple(range(8))


def stages_of(**changes):
    cluster = build(deployment(**changes), simpy.Environment(), Log(), lambda: None)
    return [getattr(engine, "stages", None) for engine in cluster.engines]


@pytest.mark.parametrize(("changes", "processes"), [
    ({"serve": {"tensor_parallel_size": 4}}, None),
    ({"serve": {"tensor_parallel_size": 4}, "ranks": {"slow": [{"gpu": 2, "speed": 0.9}]}}, [[0, 1, 3], [2]]),
    ({"serve": {"tensor_parallel_size": 2}, "ranks": {"launch_jitter": "1 us"}}, [[0], [1]]),
    ({"model": "qwen3-30b-a3b", "serve": {"data_parallel_size": 2}}, [[0], [1]]),
    ({"model": "qwen3-30b-a3b", "serve": {"data_parallel_size": 2, "tensor_parallel_size": 2},
      "ranks": {"experts": "even"}}, [[0, 1], [2, 3]]),
    ({"model": "qwen3-30b-a3b", "serve": {"tensor_parallel_size": 2}}, None),
])
def test_gpus_that_may_differ_are_processes_and_those_that_are_alike_are_one(changes, processes):
    """Where none may differ, there are no processes, and engines may go ahead of the clock."""
    stages = stages_of(detail="rank", **changes)
    found = [rank.gpus for number, pipeline in enumerate(stages) if isinstance(pipeline, RankStages)
             for stage in pipeline.stages for rank in stage.lanes[number].ranks]
    assert [[*gpus] for gpus in found] == (processes or [])
    assert processes or stages == [None]


def test_detail_used_to_be_kernel():
    assert Scenario.of({**TABLE, "detail": "kernel"}) == Scenario.of({**TABLE, "detail": "rank"})


def test_a_format_that_a_gpu_lacks_is_refused():
    serve = {"quantization": "nvfp4", "max_model_len": 8192}
    scenario = Scenario.of({**TABLE, "engine": "trtllm-1.2", "serve": serve})
    with pytest.raises(ConfigError, match="gpu H200 SXM: computes no fp4 .*'fp8_w8a16' for weights alone"):
        build(Deployment.of(scenario), simpy.Environment(), Log(), lambda: None)


def test_a_resolved_scenario_resolves_to_itself():
    resolved = deployment().scenario
    assert resolved.serve.max_num_batched_tokens == 8192 and resolved.serve.max_model_len == 131072
    assert Deployment.of(resolved).scenario == resolved


def test_every_catalogue_pair_builds_or_says_why_not():
    """No model on any GPU ends in anything but timers or an error with a remedy."""
    for gpu in catalog.entries("gpus"):
        for model in ("llama-3.2-1b", "llama-3.1-70b", "qwen3-30b-a3b"):
            try:
                assert deployment(gpu=gpu, model=model).timers()
            except KsimError as error:
                assert str(error)


def test_a_policy_without_a_policys_members_is_refused(tmp_path, monkeypatch):
    """A misspelt `propose` must not run as first come, first served in silence."""
    (tmp_path / "misspelt.py").write_text("class Mine:\n    def propse(self, waiting, running, now): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="misspelt:Mine: has none of order, victim, propose, queue"):
        plugin("scheduling.policies", Choice("misspelt:Mine"))

"""What is exported reads back as the same engines, and is a manifest as Kubernetes and llm-d's chart have them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.deploy.commands import ImportOptions
from ksim.deploy.exporting import Outgoing, exported
from ksim.deploy.importing import assembled, joined, read
from ksim.deploy.sglang_line import SglangLine
from ksim.deploy.texts import Pasted
from ksim.deploy.vllm_line import VllmLine
from ksim.deploy.writers.kubernetes import Kubernetes
from ksim.deploy.writers.llm_d import LlmD
from ksim.deploy.writers.vllm import Vllm
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.specs.settings import EngineSettings
from ksim.specs.sglang import SglangSettings
from tests.cli.command import ksim
from tests.properties import examples

FLEETS = Path(__file__).parents[2] / "scenarios" / "fleets"
WRITERS: dict[str, Any] = {"vllm": Vllm, "kubernetes": Kubernetes, "llm_d": LlmD}
SETTINGS = st.fixed_dictionaries({}, optional={
    "tensor_parallel_size": st.sampled_from([1, 2, 4]), "pipeline_parallel_size": st.sampled_from([1, 2]),
    "data_parallel_size": st.sampled_from([1, 2]),
    "max_num_batched_tokens": st.sampled_from([2048, 8192]), "max_num_seqs": st.integers(1, 512),
    "max_model_len": st.sampled_from([4096, 16384]), "gpu_memory_utilization": st.sampled_from([0.9, 0.92, 0.55]),
    "block_size": st.sampled_from([16, 32]), "enable_prefix_caching": st.booleans(), "enforce_eager": st.booleans(),
    "async_scheduling": st.booleans(), "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
    "scheduling_policy": st.sampled_from(["fcfs", "priority"]), "watermark": st.sampled_from([0.0, 0.01]),
    "long_prefill_token_threshold": st.sampled_from([0, 512]),
})


#: Settings of an engine of SGLang's.
SGLANG = st.fixed_dictionaries({}, optional={
    "tensor_parallel_size": st.sampled_from([1, 2]), "pipeline_parallel_size": st.sampled_from([1, 2]),
    "data_parallel_size": st.sampled_from([1, 2]), "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
    "enforce_eager": st.booleans(), "max_cudagraph_capture_size": st.sampled_from([8, 64]),
    "sglang": st.fixed_dictionaries({}, optional={
        "chunked_prefill_size": st.sampled_from([-1, 2048, 8192]), "max_running_requests": st.integers(1, 512),
        "context_length": st.sampled_from([4096, 16384]), "mem_fraction_static": st.sampled_from([0.8, 0.55]),
        "page_size": st.sampled_from([1, 16, 64]), "disable_radix_cache": st.booleans(),
        "schedule_policy": st.sampled_from(["fcfs", "lpm", "dfs-weight", "shortest-prefill-first"]),
        "schedule_conservativeness": st.sampled_from([1.0, 0.3]), "enable_mixed_chunk": st.booleans(),
        "radix_eviction_policy": st.sampled_from(["lru", "slru"]), "max_total_tokens": st.sampled_from([100_000]),
        "disable_overlap_schedule": st.booleans(), "prefill_decode_interval": st.sampled_from([0, 4]),
        "max_queued_requests": st.integers(1, 64), "scheduler_recv_interval": st.sampled_from([1, 30]),
    }),
})


def scenario(**keys: Any) -> Scenario:
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "workload": ANY_WORKLOAD, **keys})


@st.composite
def fleets(draw: st.DrawFn) -> Scenario:
    """One engine, replicas, pools that differ, or pools that prefill and decode."""
    kind = draw(st.sampled_from(["one", "several", "split"]))
    serve = draw(SETTINGS)
    if kind == "one":
        return scenario(serve=serve, nodes=8)
    roles = ["prefill", "decode"] if kind == "split" else ["both"] * draw(st.integers(1, 2))
    replicas = st.integers(1 if len(roles) > 1 else 2, 3)
    pools = {f"{role}-{number}": {"role": role, "replicas": draw(replicas), "serve": {
        "max_num_seqs": draw(st.integers(1, 64))}} for number, role in enumerate(roles)}
    return scenario(serve=serve, pools=pools, nodes=8)


def back(texts: dict[str, str], **wanted: Any) -> Scenario:
    """The scenario that is imported from *texts*."""
    said = ImportOptions(**wanted)
    imported = assembled(joined([read(Pasted(text), said) for text in texts.values()]), said)
    return Scenario.of(imported.table)


def engines(fleet: Scenario, names: bool) -> list[Any]:
    """Its pools; without their *names*, one by one.  SGLang's settings that nobody names are its defaults."""
    pools = [evolve(pool, settings=evolve(pool.settings, sglang=pool.settings.sglang or SglangSettings()))
             for pool in Outgoing.of(fleet).pools]
    if names and len(pools) > 1:
        return [*pools]
    return sorted((evolve(pool, name="", replicas=1, most=1) for pool in pools for _ in range(pool.replicas)), key=repr)


@pytest.mark.parametrize("form", WRITERS)
@given(st.data())
@examples(24)
def test_what_is_exported_reads_back_as_the_same_engines(form: str, data: st.DataObject) -> None:
    made = data.draw(fleets())
    if form == "llm_d" and sum(pool.role != "prefill" for pool in made.pools.values()) > 1:
        return
    texts = WRITERS[form]().write(Outgoing.of(made))
    again = back(texts, **({"gpu": "h200"} if form == "vllm" else {}), nodes=8)
    assert engines(again, names=form != "vllm") == engines(made, names=form != "vllm")


@given(st.data())
@examples(24)
def test_a_line_of_sglangs_reads_back_as_the_same_engines(data: st.DataObject) -> None:
    splits, serve = data.draw(st.booleans()), data.draw(SGLANG)
    made = scenario(engine="sglang-0.5.23", nodes=8, serve={
        **serve, **({"kv_transfer_config": {"kv_connector": "sglang"}} if splits else {})}, **(
        {"pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "replicas": 2}}} if splits else {}))
    again = back(Vllm().write(Outgoing.of(made)), gpu="h200", nodes=8)
    assert engines(again, names=False) == engines(made, names=False)


def test_a_line_without_flags_reads_back_as_an_engine_of_defaults() -> None:
    made = scenario(engine="sglang-0.5.23", serve={"sglang": {"schedule_policy": "fcfs"}})
    assert engines(back(Vllm().write(Outgoing.of(made)), gpu="h200"), names=False) == engines(made, names=False)


@pytest.mark.parametrize("serve, words", [
    ({"tensor_parallel_size": 2, "data_parallel_size": 4},
     ["--tp-size", "8", "--dp-size", "4", "--enable-dp-attention"]),
    ({"cudagraph_mode": "FULL_DECODE_ONLY"}, ["--disable-prefill-cuda-graph"]),
    ({"sglang": {"schedule_policy": "lpm", "enable_mixed_chunk": True}},
     ["--schedule-policy", "lpm", "--enable-mixed-chunk"]),
    ({"data_parallel_size": 2, "enable_expert_parallel": True, "all2all_backend": "deepep_low_latency"},
     ["--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency"]),
    ({"kv_transfer_config": {"kv_connector": "HiCache", "kv_connector_extra_config": {"hicache_ratio": 2.0}}},
     ["--enable-hierarchical-cache", "--hicache-ratio", "2.0"]),
    ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 3, "acceptance": {"name": "geometric",
                                                                                         "rate": 0.8}}},
     ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]),
])
def test_settings_are_flags_as_sglang_spells_them(serve, words):
    line = SglangLine.of("llama-3.1-8b", structure(EngineSettings, serve))
    assert line.words[:5] == ("python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B")
    assert " ".join(words) in " ".join(line.words)


def test_a_manifest_has_no_container_of_sglangs():
    with pytest.raises(ConfigError, match="engine: is 'sglang-0.5.8', and a manifest is written for vLLM alone"):
        Kubernetes().write(Outgoing.of(scenario(engine="sglang-0.5.8")))


def test_pools_of_other_gpus_and_releases_stay_so():
    made = scenario(nodes=2, pools={"a": {"role": "both", "gpu": "h100"}, "b": {"role": "both", "gpu": "b200"}},
                    engine="vllm-0.22")
    assert engines(back(Kubernetes().write(Outgoing.of(made))), True) == engines(made, True)


@pytest.mark.parametrize("form", ["kubernetes", "llm_d"])
def test_a_router_with_a_configuration_reads_back_as_it_is(form):
    made = Scenario.read(FLEETS / "llm_d.toml")
    again = back(WRITERS[form]().write(Outgoing.of(made)))
    assert again.router.options["config"] == yaml.safe_load((FLEETS / "optimized_baseline.yaml").read_text("utf-8"))


@pytest.mark.parametrize("options", [{}, {"filters": ["low-queue-filter"], "picker": "random-picker"}])
def test_a_router_by_options_becomes_the_configuration_that_they_stand_for(options):
    pools = {"a": {"role": "both", "replicas": 2}}
    made = scenario(pools=pools, router={"name": "llm_d", **options})
    config = back(LlmD().write(Outgoing.of(made))).router.options["config"]
    refs = config["schedulingProfiles"][0]["plugins"]
    assert [ref["pluginRef"] for ref in refs][:1] == (["low-queue-filter"] if options else ["queue-scorer"])
    assert {plugin["type"] for plugin in config["plugins"]} == {ref["pluginRef"] for ref in refs}


def test_pools_that_split_get_llm_d_s_profiles_and_its_sidecar():
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode", "replicas": 2}}
    texts = LlmD().write(Outgoing.of(scenario(pools=pools, pair_router="llm_d")))
    values = yaml.safe_load(texts[""])
    assert values["routing"]["proxy"] == {"enabled": True, "connector": "nixlv2", "targetPort": 8200}
    assert values["prefill"]["replicas"] == 1 and values["decode"]["replicas"] == 2
    again = back(texts)
    assert again.pair_router is not None and again.pair_router.name == "llm_d"


def test_a_replica_on_several_machines_is_a_group_of_pods():
    made = scenario(model="llama-3.1-405b", nodes=2, serve={"tensor_parallel_size": 8, "pipeline_parallel_size": 2})
    group, service = yaml.safe_load_all(Kubernetes().write(Outgoing.of(made))[""])
    template = group["spec"]["leaderWorkerTemplate"]
    assert group["kind"] == "LeaderWorkerSet" and template["size"] == 2 and service["kind"] == "Service"
    leader, worker = (template[part]["spec"]["containers"][0] for part in ("leaderTemplate", "workerTemplate"))
    assert worker["args"] == [*leader["args"], "--headless"] and "ports" not in worker
    assert leader["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    for form in ("kubernetes", "llm_d"):
        assert engines(back(WRITERS[form]().write(Outgoing.of(made))), False) == engines(made, False)


def test_a_rack_s_pods_stay_on_its_machines():
    made = scenario(model="llama-3.1-70b", gpu="gb200", serve={"tensor_parallel_size": 8})
    group, _ = yaml.safe_load_all(Kubernetes().write(Outgoing.of(made))[""])
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2


def test_a_manifest_is_as_kubernetes_wants_it():
    """Labels select the pods, names are DNS labels, and every quantity is a text."""
    made = scenario(pools={"A_very-Long.name".replace(".", "_"): {"role": "both", "replicas": 2}})
    workload, service = yaml.safe_load_all(Kubernetes().write(Outgoing.of(made))[""])
    spec = workload["spec"]
    assert workload["apiVersion"] == "apps/v1" and workload["kind"] == "Deployment" and spec["replicas"] == 2
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert workload["metadata"]["name"] == "llama-3-2-1b-a-very-long-name"
    container = spec["template"]["spec"]["containers"][0]
    assert all(isinstance(word, str) for word in container["args"])
    assert container["resources"]["requests"] == container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert spec["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}


@pytest.mark.parametrize("serve, words", [
    ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
    ({"fuse_allreduce_rms": True}, ["--compilation-config", '{"pass_config": {"fuse_allreduce_rms": true}}']),
    ({"cudagraph_capture_sizes": [1, 2]}, ["--cudagraph-capture-sizes", "1", "2"]),
    ({"limit_mm_per_prompt": {"image": 4, "video": 0}}, ["--limit-mm-per-prompt", '{"image": 4, "video": 0}']),
    ({"quantization": "fp8"}, ["--quantization", "fp8"]),
    ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": "geometric"}},
     ["--speculative-config", '{"num_speculative_tokens": 3, "method": "ngram"}']),
])
def test_settings_are_flags_as_vllm_spells_them(serve, words):
    line = VllmLine.of("llama-3.1-8b", structure(EngineSettings, serve))
    assert line.words[:3] == ("vllm", "serve", "meta-llama/Llama-3.1-8B")
    assert " ".join(words) in " ".join(line.words)


@pytest.mark.parametrize("serve, said", [
    ({"admission": "always", "prefix_cache": "sglang"}, 'serve.prefix_cache = "sglang": vLLM has no such setting'),
    ({"quantization": "fp8_block"}, "vLLM takes the format of the checkpoint"),
    ({"scheduling_policy": "sjf"}, "vLLM has fcfs and priority"),
    ({"enable_lora": True, "lora_modules": [{"name": "a"}]}, "put the adapters' paths"),
])
def test_what_vllm_has_no_flag_for_is_said(serve, said):
    assert said in " ".join(VllmLine.of("llama-3.1-8b", structure(EngineSettings, serve)).missing)


def test_what_a_form_cannot_say_is_in_its_comments(tmp_path):
    path = tmp_path / "s.toml"
    made = scenario(slo={"ttft": "1 s"}, pools={"a": {"role": "both", "replicas": 2}}, router="power_of_two")
    path.write_text(made.to_toml(), encoding="utf-8")
    for form in WRITERS:
        text = exported(path, form)[""]
        assert "slo: part of the scenario" in text and "'power_of_two'" in text


def test_derived_settings_are_there_on_request(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(scenario().to_toml(), encoding="utf-8")
    assert "--max-num-seqs" not in exported(path, "vllm")[""]
    assert "--max-num-seqs 1024" in exported(path, "vllm", derived=True)[""]


@pytest.mark.parametrize("keys, problem", [
    ({"engine": "trtllm-1.2"}, "engine: is 'trtllm-1.2'; launch lines are written for vLLM and SGLang"),
    ({"pools": {"a": {"role": "both"}, "b": {"role": "decode"}, "c": {"role": "prefill"}}}, "pools: a, b are several"),
])
def test_what_cannot_be_exported_is_refused(keys, problem):
    with pytest.raises(ConfigError, match=problem):
        LlmD().write(Outgoing.of(scenario(**keys)))


def test_a_run_s_scenario_has_no_flag_for_what_the_checkpoint_says(tmp_path):
    ksim("new", "s.toml", folder=tmp_path)
    text = ksim("export", "s.toml", "--derived", folder=tmp_path)
    assert "serve.quantization" not in text and "--quantization" not in text


@pytest.mark.parametrize("words, problem", [
    (["none.toml"], "none.toml: No such file"), (["."], ". is a folder"[2:]), (["trace.csv"], "is not a scenario"),
    (["s.toml", "--to", "helm"], "--to: expected kubernetes, llm-d, vllm, not 'helm'"),
    (["s.toml", "-o", "."], "is a folder; name a file in it"), (["s.toml", "-o", "s.toml"], "exists; --force"),
    (["two.toml", "--to", "llm-d", "-o", "v.yaml"], "pools: a, b are several of role decode or both"),
])
def test_what_the_command_cannot_do_is_said_and_nothing_is_written(words, problem, tmp_path):
    (tmp_path / "s.toml").write_text(scenario().to_toml(), encoding="utf-8")
    two = scenario(pools={"a": {"role": "both"}, "b": {"role": "both"}})
    (tmp_path / "two.toml").write_text(two.to_toml(), encoding="utf-8")
    (tmp_path / "trace.csv").write_text("arrival,prompt,output\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert problem in ksim("export", *words, folder=tmp_path, code=1)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_best_of_a_plan_is_exported_from_its_folder_and_the_router_beside_the_engines(tmp_path):
    plan = tmp_path / "plan"
    plan.mkdir()
    pools = {"a": {"role": "both", "replicas": 2}}
    (plan / "best.toml").write_text(scenario(pools=pools, router="llm_d").to_toml(), encoding="utf-8")
    said = ksim("export", "plan", "--to", "llm-d", "-o", "v.yaml", folder=tmp_path)
    assert said == "wrote v.yaml\nwrote v-router.yaml\n"
    again = ksim("import", "v.yaml", "v-router.yaml", folder=tmp_path)
    assert "[pools.a]" in again and "queue-scorer" in again

"""llm-d's values, Dynamo's graphs and AIConfigurator's results are pools, roles and routers of a scenario."""

from pathlib import Path
from typing import Any

import pytest

from ksim.deploy.commands import ImportOptions
from ksim.deploy.importing import assembled, joined, read
from ksim.deploy.texts import Pasted, main_file
from ksim.foundation.errors import KsimError
from tests.deploy.texts import BETA, CONFIG, GRAPH, PICKER, SLURM, STACK, VALUES, row


def made(*texts: str, folder: Path = Path(), source: str = "f", **wanted: Any) -> Any:
    said = ImportOptions(**wanted)
    return assembled(joined([read(Pasted(text, source, folder), said) for text in texts]), said).table


def refusal(*texts: str, **wanted: Any) -> str:
    with pytest.raises(KsimError) as caught:
        made(*texts, **wanted)
    return str(caught.value)


def test_values_are_what_the_chart_makes_of_them():
    table = made(VALUES)
    assert table["model"] == "qwen3-32b" and table["gpu"] == "h100" and table["router"] == "llm_d"
    assert table["serve"]["tensor_parallel_size"] == 2 and table["serve"]["gpu_memory_utilization"] == 0.95
    assert table["pools"] == {"engines": {"role": "both", "replicas": 8}}


def test_two_sides_and_an_endpoint_picker_are_pools_and_a_pair_router():
    side = VALUES[VALUES.index("decode:"):VALUES.index("prefill:")]
    table = made(VALUES.replace("prefill: {create: false}\n", side.replace("decode:", "prefill:", 1)
                                .replace("replicas: 8", "replicas: 4")), PICKER)
    assert {name: pool["role"] for name, pool in table["pools"].items()} == {"prefill": "prefill", "decode": "decode"}
    assert table["pair_router"]["config"]["plugins"][-1] == {"type": "always-disagg-pd-decider"}


def test_an_endpoint_picker_s_default_file_is_its_chart_s():
    table = made(VALUES, "inferenceExtension: {pluginsConfigFile: default-plugins.yaml}\n")
    assert table["router"]["config"]["plugins"][0] == {"type": "queue-scorer"}


def test_sizes_follow_from_each_other_as_in_the_chart():
    wide = VALUES.replace("{tensor: 2, data: 1}", "{tensor: 1, data: 16, dataLocal: 8}").replace("replicas: 8", "")
    assert made(wide)["serve"]["data_parallel_size"] == 16


@pytest.mark.parametrize("before, after, problem", [
    ("type: nvidia", "type: amd", "f:7: accelerator.type: 'amd' is no accelerator"),
    ("vllmServe", "vllmServ", "modelCommand: expected vllmServe, imageDefault, custom"),
    ("decode:", "decod:", "f:8: decod: there is no such field; did you mean 'decode'?"),
    ("replicas: 8", "replicas: many", "f:10: decode.replicas: expected a whole number"),
    ("tensor: 2", "tensr: 2", "decode.parallelism.tensr: there is no such field; did you mean 'tensor'?"),
    ("hf://{{ .Values.modelArtifacts.name }}", "{{ include 'x' . }}", "f:3: modelArtifacts.uri: has a template"),
    ("hf://{{ .Values.modelArtifacts.name }}", "s3://x", "expected hf://ORGANISATION/MODEL"),
    ("data: 1", "data: 6, dataLocal: 4", "data 6 is no multiple of dataLocal 4"),
    ("--gpu-memory-utilization", "--gpu-memory-utilisation", "f:16: decode.containers[0].args[0]"),
])
def test_what_is_wrong_in_values_is_named(before, after, problem):
    assert problem in refusal(VALUES.replace(before, after))


@pytest.mark.parametrize("before, after, problem", [
    ("type: queue-scorer", "type: queue-scoror", "there is no plugin 'queue-scoror'"),
    ("plugins:\n", "plugins: [\n", "is not valid YAML"),
    ("pluginsConfigFile: \"pd-config.yaml\"", "pluginsConfigFile: x.yaml", "'x.yaml' is none of pluginsCustomConfig"),
])
def test_what_is_wrong_in_an_endpoint_picker_is_named(before, after, problem):
    assert problem in refusal(VALUES, PICKER.replace(before, after, 1))


def test_a_graph_s_frontend_is_the_router_and_its_workers_are_pools():
    table = made(GRAPH, gpu="h100")
    assert table["pair_router"]["prefill"] == {"name": "dynamo_kv", "router_temperature": 0.5}
    assert table["pair_router"]["decode"]["overlap_score_credit"] == 0.0
    pools = table["pools"]
    assert pools["VllmDecodeWorker"]["replicas"] == 2 and pools["VllmDecodeWorker"]["role"] == "decode"
    assert pools["VllmPrefillWorker"]["serve"]["tensor_parallel_size"] == 2


def test_a_graph_without_prefill_serves_requests_alone():
    table = made(BETA, gpu="h100")
    assert table["router"] == {"name": "dynamo_kv", "use_kv_events": False}
    assert table["pools"] == {"worker": {"role": "both", "replicas": 3}}


@pytest.mark.parametrize("before, after, problem", [
    ("value: kv}", "value: clever}", "router mode 'clever' is not simulated"),
    ("componentType: frontend", "componentType: epp", "an endpoint picker of Dynamo's is not simulated"),
    ("limits: {gpu: \"1\"}", "limits: {gpu: x}", "f:13: spec.services.VllmDecodeWorker.resources.limits.gpu"),
    ("--is-decode-worker", "--route-to-encoder", "--route-to-encoder is not simulated"),
    ("--is-decode-worker", "--connector, kvbm", "--connector kvbm is not simulated"),
    ("replicas: 2", "replica: 2", "replica: there is no such field; did you mean 'replicas'?"),
    ("DYN_ROUTER_TEMPERATURE", "DYN_ROUTER_QUEUE_THRESHOLD", "--router-queue-threshold is not simulated"),
])
def test_what_is_wrong_in_a_graph_is_named(before, after, problem):
    assert problem in refusal(GRAPH.replace(before, after), gpu="h100")


def test_a_search_s_parameters_are_engines_a_load_and_targets():
    table = made(CONFIG)
    assert table["gpu"] == "h200" and table["router"] == {"name": "dynamo_kv"}
    assert table["serve"] == {"tensor_parallel_size": 2, "max_num_seqs": 64, "quantization": "fp8",
                              "kv_cache_dtype": "fp8"}
    assert table["slo"] == {"ttft": "1200.5 ms", "tpot": "20.0 ms"} and table["workload"]["max_concurrency"] == 32


def test_the_manifest_beside_a_search_s_parameters_has_the_flags(tmp_path):
    top = tmp_path / "agg" / "top1"
    top.mkdir(parents=True)
    (top / "generator_config.yaml").write_text(CONFIG, encoding="utf-8")
    (top / "k8s_deploy.yaml").write_text(BETA, encoding="utf-8")
    path = main_file(tmp_path)
    assert path == top / "generator_config.yaml"
    table = made(CONFIG, folder=top, source=str(path))
    assert table["gpu"] == "h200" and "slo" in table and table["pools"]["worker"]["replicas"] == 3


def test_a_row_of_results_is_two_pools():
    table = made(row(**{"(d)tp": 4}))
    assert table["engine"] == "trtllm-1.2" and table["pools"]["decode"]["serve"]["tensor_parallel_size"] == 4
    assert table["pools"]["prefill"]["replicas"] == 4 and table["serve"]["quantization"] == "fp8_block"


@pytest.mark.parametrize("model, quantization", [
    ("Qwen/Qwen3-32B", "int4_w4a16_g128"), ("Qwen/Qwen3-32B-AWQ", "awq"), ("moonshotai/Kimi-K2-Thinking", "int4_w4a16"),
    ("moonshotai/Kimi-K2.5", None)])
def test_groups_of_int4_are_the_checkpoint_s_or_of_128(model, quantization):
    """Of Kimi-K2.5, config.json says that there are 32 weights in each, and that experts alone are in INT4."""
    table = made(row(model=model, **{"(p)gemm": "int4_wo", "(d)gemm": "int4_wo"}))
    assert table["serve"].get("quantization") == quantization


@pytest.mark.parametrize("columns, problem", [
    ({"(d)system": "mi300x"}, "'mi300x' is no system that ksim knows"), ({"(p)gemm": "w4afp8"}, "gemm: the format"),
    ({"model": "nobody/none"}, "nobody/none"), ({"(p)tp": "many"}, "tp: expected a whole number"),
    ({"(p)backend": "mlx"}, "'mlx' is no engine"), ({"isl": "long"}, "isl, osl and concurrency are numbers"),
])
def test_what_is_wrong_in_a_row_is_named(columns, problem):
    assert problem in refusal(row(**columns))


def test_a_folder_that_no_tool_wrote_is_refused(tmp_path):
    with pytest.raises(KsimError, match="is a folder without generator_config"):
        main_file(tmp_path)


def test_values_of_the_production_stack_are_what_its_chart_makes_of_them():
    table = made(STACK, gpu="h100")
    assert table["router"] == "session_affinity" and table["pools"] == {"llama3": {"role": "both", "replicas": 2}}
    transfer = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both",
                "kv_connector_extra_config": {"lmcache.max_local_cpu_size": 10.0}}
    assert table["serve"] == {"enable_prefix_caching": False, "max_model_len": 16384, "tensor_parallel_size": 2,
                              "gpu_memory_utilization": 0.8, "max_num_batched_tokens": 4096,
                              "kv_transfer_config": transfer}


def test_two_models_of_the_production_stack_that_send_kv_are_two_sides():
    model = STACK[STACK.index("  - name"):STACK.index("routerSpec")]
    sides = [model.replace("llama3", role).replace("cpuOffloadingBufferSize: \"10\"", f"enablePD: true, kvRole: {kv}")
             for role, kv in (("prefill", "kv_producer"), ("decode", "kv_consumer"))]
    table = made(STACK.replace(model, "".join(sides)).replace("session,", "disaggregated_prefill,"), gpu="h100")
    assert {name: (pool["role"], pool["replicas"]) for name, pool in table["pools"].items()} == {
        "prefill": ("prefill", 2), "decode": ("decode", 2)} and "router" not in table


@pytest.mark.parametrize("before, after, problem", [
    ("requestGPU: 2", "requestGPU: 1", "needs 2 GPUs (tensor_parallel_size 2), and its pod has 1"),
    ("requestGPU: 2", "requestGPUs: 2", "f:10: servingEngineSpec.modelSpec[0].requestGPUs: there is no such field"),
    ("requestGPU: 2", "requestGPUMem: 2", "asks for a part of a GPU"),
    ('"10"', '"nan"', "expected a number of GB, not"),
    ("requestCPU: 6", "requestGPUCores: 50", "requestGPUCores: asks for a part of a GPU"),
    ("maxModelLen", "maxModelLength", "vllmConfig.maxModelLength: there is no such field; did you mean 'maxModelLen'?"),
    ("session,", "ttft,", "f:18: routerSpec.routingLogic: 'ttft' is not simulated; there are roundrobin, session"),
    ("requestCPU: 6", "raySpec: {enabled: true}", "engines of Ray over several nodes are not read"),
    ("modelSpec:", "models:", "servingEngineSpec.modelSpec has no model that is served"),
])
def test_what_is_wrong_in_the_production_stack_is_named(before, after, problem):
    assert problem in refusal(STACK.replace(before, after), gpu="h100")


def test_a_recipe_of_srt_slurm_is_two_pools_a_router_and_a_load():
    table = made(SLURM)
    assert table["model"] == "deepseek-r1" and table["gpu"] == "h200" and table["engine"] == "sglang-0.5.8"
    assert {name: (pool["role"], pool["replicas"], pool["serve"].get("data_parallel_size"))
            for name, pool in table["pools"].items()} == {"prefill": ("prefill", 1, None), "decode": ("decode", 2, 8)}
    assert table["pair_router"]["prefill"] == {"name": "dynamo_kv", "use_kv_events": False}
    assert table["workload"]["max_concurrency"] == 4 and table["serve"]["sglang"]["context_length"] == 9600


def test_a_recipe_of_srt_slurm_for_tensorrt_llm_has_its_yaml():
    text = SLURM[:SLURM.index("  sglang_config")] + """\
  type: trtllm
  trtllm_config:
    prefill: {tensor_parallel_size: 4, max_num_tokens: 16384, cuda_graph_config: null}
    decode: {tensor_parallel_size: 8, max_batch_size: 64}
"""
    pools = made(text.replace("path: dsr1", "path: 'hf:deepseek-ai/DeepSeek-R1'"))["pools"]
    assert pools["prefill"]["serve"]["max_num_batched_tokens"] == 16384
    assert pools["decode"]["serve"]["max_num_seqs"] == 64


@pytest.mark.parametrize("before, after, problem", [
    ("gpu_type: h200", "gpu_type: mi300x", "f:4: resources.gpu_type: 'mi300x' is no GPU that ksim knows"),
    ("tensor-parallel-size: 8", "tensor-parallel-size: 16", "a worker needs 16 GPUs, and resources give it 8"),
    ("tensor-parallel-size", "tensor-paralel-size", "f:12: --tensor-paralel-size: SGLang"),
    ("type: dynamo", "type: nginx", "f:5: frontend.type: 'nginx' is no frontend that ksim knows"),
    ("router-mode: kv", "router-mode: best", "router mode 'best' is not simulated"),
    ("name: two-sides", "base: {name: x}", "f:1: base: is the base of several variants; write one out first: srtctl"),
    ("backend:", "backend:\n  type: mlx", "backend.type: 'mlx' is no engine that ksim simulates: sglang, vllm, trtllm"),
    ("prefill_workers: 1, decode_nodes: 2, decode_workers: 2", "prefill_workers: 0", "has no workers: expected"),
])
def test_what_is_wrong_in_a_recipe_of_srt_slurm_is_named(before, after, problem):
    assert problem in refusal(SLURM.replace(before, after))


def test_an_accelerator_of_one_side_overrides_that_of_all():
    one = VALUES.replace("decode:\n", "decode:\n  accelerator: {type: nvidia, dra: false}\n")
    assert made(one.replace("{type: nvidia}", "{type: amd}")) == made(VALUES)
    other = one.replace("type: nvidia, dra", "type: amd, dra")
    assert "decode.accelerator.type: 'amd' is no accelerator" in refusal(other)

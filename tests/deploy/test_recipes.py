"""llm-d's values, Dynamo's graphs and AIConfigurator's results are pools, roles and routers of a scenario."""

import csv
import io
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ksim.deploy.assembly import assembled, joined
from ksim.deploy.folders import main_file
from ksim.deploy.imported import Wanted
from ksim.deploy.pasted import Pasted
from ksim.deploy.reading import read
from ksim.foundation.errors import KsimError

VALUES = dedent("""\
    multinode: false
    modelArtifacts:
      uri: "hf://{{ .Values.modelArtifacts.name }}"
      name: "Qwen/Qwen3-32B"
    routing:
      proxy: {enabled: false}
    accelerator: {type: nvidia}
    decode:
      parallelism: {tensor: 2, data: 1}
      replicas: 8
      acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-H100-80GB-HBM3]}
      containers:
        - name: vllm
          image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
          modelCommand: vllmServe
          args: ["--gpu-memory-utilization=0.95"]
          resources: {limits: {cpu: '32'}}
    prefill: {create: false}
    """)
PICKER = dedent("""\
    inferenceExtension:
      pluginsConfigFile: "pd-config.yaml"
      pluginsCustomConfig:
        pd-config.yaml: |
          apiVersion: inference.networking.x-k8s.io/v1alpha1
          kind: EndpointPickerConfig
          plugins:
          - type: prefill-filter
          - type: decode-filter
          - type: queue-scorer
          - type: pd-profile-handler
            parameters: {threshold: 0}
          schedulingProfiles:
          - name: prefill
            plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 1.0}]
          - name: decode
            plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 1.0}]
    """)
GRAPH = dedent("""\
    apiVersion: nvidia.com/v1alpha1
    kind: DynamoGraphDeployment
    metadata: {name: graph}
    spec:
      envs: [{name: MODEL, value: Qwen/Qwen3-8B}]
      services:
        Frontend:
          componentType: frontend
          envs: [{name: DYN_ROUTER_MODE, value: kv}, {name: DYN_ROUTER_TEMPERATURE, value: "0.5"}]
        VllmDecodeWorker:
          componentType: worker
          replicas: 2
          resources: {limits: {gpu: "1"}}
          extraPodSpec:
            mainContainer:
              image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0
              command: [python3, -m, dynamo.vllm]
              args: [--model, Qwen/Qwen3-8B, --is-decode-worker]
        VllmPrefillWorker:
          componentType: worker
          resources: {limits: {gpu: "2"}}
          extraPodSpec:
            mainContainer:
              command: [/bin/sh, -c]
              args: ["python3 -m dynamo.vllm --model $MODEL --tensor-parallel-size 2 --is-prefill-worker"]
    """)
BETA = dedent("""\
    apiVersion: nvidia.com/v1beta1
    kind: DynamoGraphDeployment
    metadata: {name: graph}
    spec:
      components:
      - name: Frontend
        type: frontend
        podTemplate:
          spec:
            containers:
            - name: main
              command: [/bin/bash, -lc]
              args: ["exec python3 -m dynamo.frontend --router-mode kv --no-kv-events --http-port 8000"]
      - name: worker
        type: decode
        replicas: 3
        podTemplate:
          spec:
            containers:
            - name: main
              command: [python3, -m, dynamo.vllm]
              args: [--model, Qwen/Qwen3-8B, --disaggregation-mode, decode]
              resources: {limits: {nvidia.com/gpu: 1}}
    """)
CONFIG = dedent("""\
    ServiceConfig: {model_path: Qwen/Qwen3-8B}
    K8sConfig: {k8s_image: 'nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.0'}
    DynConfig: {mode: agg, enable_router: true}
    WorkerConfig: {agg_workers: 4}
    SlaConfig: {isl: 4000, osl: 1000, ttft: 1200.5, tpot: 20.0}
    BenchConfig: {estimated_concurrency: 32}
    NodeConfig: {num_gpus_per_node: 8, system_name: h200_sxm}
    params:
      agg: {tensor_parallel_size: 2, max_batch_size: 64, gemm_quant_mode: fp8, kv_cache_dtype: fp8}
    """)


def row(**columns: Any) -> str:
    side = {"tp": 1, "pp": 1, "dp": 1, "moe_tp": 1, "moe_ep": 1, "bs": 8, "gemm": "fp8_block", "kvcache": "fp8",
            "backend": "trtllm", "version": "1.2.0rc5", "system": "h200_sxm"}
    values = {"model": "Qwen/Qwen3-32B", "isl": 4000, "osl": 1000, "concurrency": 36, "tokens/s/gpu": 1,
              **{f"(p){key}": value for key, value in side.items()}, "(p)workers": 4,
              **{f"(d){key}": value for key, value in side.items()}, "(d)workers": 3, **columns}
    text = io.StringIO()
    table = csv.DictWriter(text, [*values])
    table.writeheader()
    table.writerow(values)
    return text.getvalue()


def made(*texts: str, folder: Path = Path(), source: str = "f", **wanted: Any) -> Any:
    said = Wanted(**wanted)
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

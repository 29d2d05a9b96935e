"""Manifests, values and results as tools write them."""

import csv
import io
from textwrap import dedent
from typing import Any

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: llama
spec:
  replicas: 3
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.33.0
          command: [vllm, serve]
          args:
            - meta-llama/Llama-3.1-8B-Instruct
            - --tensor-parallel-size
            - "2"
            - --max-model-len=$(LENGTH)
          env:
            - {name: LENGTH, value: "8192"}
          resources:
            limits: {nvidia.com/gpu: "2"}
          readinessProbe: {httpGet: {path: /health, port: 8000}}
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: llama}\nspec: {ports: [{port: 80}]}\n"
SCRIPT = dedent("""\
    apiVersion: leaderworkerset.x-k8s.io/v1
    kind: LeaderWorkerSet
    metadata: {name: wide}
    spec:
      replicas: 2
      leaderWorkerTemplate:
        size: 2
        workerTemplate:
          spec:
            affinity:
              nodeAffinity:
                requiredDuringSchedulingIgnoredDuringExecution:
                  nodeSelectorTerms:
                  - matchExpressions:
                    - {key: node.kubernetes.io/instance-type, operator: In, values: [p5en.48xlarge]}
            containers:
            - name: vllm
              image: ghcr.io/llm-d/llm-d-cuda:v0.7.0
              command: [/bin/bash, -c]
              args:
              - |-
                # start
                START_RANK=$(( ${LWS_WORKER_INDEX:-0} * DP_SIZE_LOCAL ))
                args=(
                  --enable-expert-parallel  # experts
                )
                args+=(--max-num-seqs ${MAX_TOKENS})
                exec vllm serve deepseek-ai/DeepSeek-R1 \\
                  --data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) \\
                  --data-parallel-size-local $DP_SIZE_LOCAL \\
                  --data-parallel-address ${LWS_LEADER_ADDRESS} \\
                  --data-parallel-start-rank $START_RANK "${args[@]}"
              env:
              - {name: MAX_TOKENS, value: "256"}
              - {name: DP_SIZE_LOCAL, value: "8"}
              resources: {limits: {nvidia.com/gpu: "8"}}
    """)
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
STACK = dedent("""\
    servingEngineSpec:
      runtimeClassName: ""
      modelSpec:
      - name: llama3
        repository: lmcache/vllm-openai
        tag: v0.3.9post2
        modelURL: meta-llama/Llama-3.1-8B-Instruct
        replicaCount: 2
        requestCPU: 6
        requestGPU: 2
        vllmConfig:
          maxModelLen: 16384
          tensorParallelSize: 2
          gpuMemoryUtilization: 0.8
          extraArgs: ["--max-num-batched-tokens", "4096"]
        lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "10"}
        env: [{name: HF_HOME, value: /data}]
    routerSpec: {routingLogic: session, sessionKey: x-user-id}
    """)
SLURM = dedent("""\
    name: two-sides
    model: {path: dsr1, container: "/c/lmsysorg+sglang+v0.5.8.sqsh", precision: fp8}
    resources:
      {gpu_type: h200, gpus_per_node: 8, prefill_nodes: 1, prefill_workers: 1, decode_nodes: 2, decode_workers: 2}
    frontend: {type: dynamo, args: {router-mode: kv, no-kv-events: true}}
    backend:
      prefill_environment: {PYTHONUNBUFFERED: "1"}
      sglang_config:
        prefill: &side
          served-model-name: deepseek-ai/DeepSeek-R1
          disaggregation-mode: prefill
          tensor-parallel-size: 8
          disable-radix-cache: true
          enable-mixed-chunk: false
          context-length: 9600
        decode:
          <<: *side
          disaggregation-mode: decode
          data-parallel-size: 8
          enable-dp-attention: true
    benchmark: {type: sa-bench, isl: 8192, osl: 1024, concurrencies: "4x128", req_rate: inf}
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

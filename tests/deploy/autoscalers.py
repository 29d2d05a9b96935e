"""Manifests with autoscalers of all kinds, and what they scale."""

from textwrap import dedent

from tests.deploy.texts import DEPLOYMENT

HPA = dedent("""\
    apiVersion: autoscaling/v2
    kind: HorizontalPodAutoscaler
    metadata: {name: llama-hpa}
    spec:
      scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}
      minReplicas: 2
      maxReplicas: 8
      metrics:
        - type: External
          external:
            metric: {name: igw_queue_depth, selector: {matchLabels: {pool: llama}}}
            target: {type: Value, value: "2500m"}
        - type: Pods
          pods:
            metric: {name: vllm:num_requests_running}
            target: {type: AverageValue, averageValue: 20}
      behavior:
        scaleDown: {stabilizationWindowSeconds: 60, policies: [{type: Percent, value: 50, periodSeconds: 30}]}
""")
KEDA = dedent("""\
    apiVersion: keda.sh/v1alpha1
    kind: ScaledObject
    metadata:
      name: llama-keda
      annotations: {autoscaling.keda.sh/transfer-hpa-ownership: "true"}
    spec:
      scaleTargetRef: {name: llama}
      minReplicaCount: 1
      triggers:
        - type: prometheus
          metadata:
            serverAddress: http://prometheus.monitoring:9090
            query: sum(vllm:num_requests_waiting{namespace="llm"})
            threshold: "5"
          authenticationRef: {name: prometheus-token}
""")
VARIANT = dedent("""\
    apiVersion: llmd.ai/v1alpha1
    kind: VariantAutoscaling
    metadata: {name: llama}
    spec: {modelID: meta-llama/Llama-3.1-8B-Instruct, variantCost: "10.0"}
""")
FOLLOWS = HPA[:HPA.index("  metrics")] + dedent("""\
    # the wish of llm-d's autoscaler
      metrics:
        - type: External
          external:
            metric: {name: wva_desired_replicas, selector: {matchLabels: {variant_name: llama}}}
            target: {type: AverageValue, averageValue: "1"}
    """)
UNSET = DEPLOYMENT.replace("  replicas: 3\n", "")
NONE = DEPLOYMENT.replace("replicas: 3", "replicas: 0")
GRAPH = dedent("""\
    apiVersion: nvidia.com/v1alpha1
    kind: DynamoGraphDeployment
    metadata: {name: agg}
    spec:
      services:
        Frontend: {componentType: frontend, replicas: 1, envs: [{name: DYN_ROUTER_MODE, value: kv}]}
        VllmWorker:
          componentType: worker
          replicas: 1
          scalingAdapter: {enabled: true}
          resources: {limits: {gpu: "1"}}
          extraPodSpec:
            mainContainer:
              image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0.0
              command: [python3, -m, dynamo.vllm]
              args: [--model, Qwen/Qwen3-8B]
""")
BUDGET = ("apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: llama}\n"
          "spec: {minAvailable: 50%, selector: {matchLabels: {app: llama}}}\n")

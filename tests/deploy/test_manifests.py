"""Kubernetes manifests are read with all that is in them, and what is wrong in one is named by line and key."""

import json
from textwrap import dedent
from typing import Any

import pytest
import yaml

from ksim.deploy.commands import ImportOptions
from ksim.deploy.importing import assembled, read
from ksim.deploy.texts import Pasted
from ksim.foundation.errors import KsimError
from tests.deploy.texts import DEPLOYMENT, SCRIPT, SERVICE


def table(text: str, **wanted: Any) -> Any:
    said = ImportOptions(**wanted)
    return assembled(read(Pasted(text, "m.yaml"), said), said).table


def changed(*changes: tuple[str, str], text: str = DEPLOYMENT) -> str:
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    return text


def refusal(text: str, **wanted: Any) -> str:
    with pytest.raises(KsimError) as caught:
        table(text, **wanted)
    return str(caught.value)


def test_a_deployment_is_a_pool_of_its_replicas():
    made = table(DEPLOYMENT + "---\n" + SERVICE)
    assert made["model"] == "llama-3.1-8b" and made["gpu"] == "h100" and made["engine"] == "vllm-0.33"
    assert made["pools"] == {"llama": {"role": "both", "replicas": 3}}
    assert made["serve"]["tensor_parallel_size"] == 2 and made["serve"]["max_model_len"] == 8192


def test_what_has_no_effect_is_listed_with_its_place():
    deployed = read(Pasted(DEPLOYMENT + "---\n" + SERVICE, "m.yaml"), ImportOptions())
    notes = {note.word: note.where for note in (*deployed.idle, *deployed.launches[0].idle)}
    assert notes["Service llama"] == "m.yaml:28" and notes["selector"] == "m.yaml:7: spec.selector"
    assert notes["readinessProbe"] == "m.yaml:26: spec.template.spec.containers[0].readinessProbe"


@pytest.mark.parametrize("text", [
    changed(("kind: Deployment", "kind: StatefulSet"), ("  selector:", "  serviceName: x\n  selector:")),
    "apiVersion: v1\nkind: List\nitems:\n- " + DEPLOYMENT.strip().replace("\n", "\n  ") + "\n",
    changed(("args:\n", "args: &args\n")),
])
def test_other_forms_of_the_same_say_the_same(text):
    assert table(text) == table(DEPLOYMENT)


def test_json_says_the_same_even_with_tabs():
    assert table(json.dumps(yaml.safe_load(DEPLOYMENT), indent="\t")) == table(DEPLOYMENT)


def test_a_pod_is_one_engine():
    pod = dedent("""\
        apiVersion: v1
        kind: Pod
        metadata: {name: p}
        spec:
          containers:
          - name: c
            image: vllm/vllm-openai:v0.33.0
            args: [--model, Qwen/Qwen3-8B]
            resources: {limits: {nvidia.com/gpu: 1}}
        """)
    made = table(pod, gpu="h200")
    assert made["model"] == "qwen3-8b" and "pools" not in made


def test_a_group_of_pods_is_an_engine_and_its_script_is_read_as_a_shell_reads_it():
    made = table(SCRIPT)
    assert made["gpu"] == "h200" and made["nodes"] == 4 and made["pools"]["wide"]["replicas"] == 2
    assert made["serve"]["data_parallel_size"] == 16 and made["serve"]["max_num_seqs"] == 256
    assert made["serve"]["enable_expert_parallel"] is True and made["engine"] == "vllm-0.33"


def test_a_word_of_a_script_is_named_by_its_line():
    assert refusal(changed(("--enable-expert-parallel  #", "--enable-expert-paralel  #"), text=SCRIPT)).startswith(
        "m.yaml:25: spec.leaderWorkerTemplate.workerTemplate.spec.containers[0].args[0]: --enable-expert-paralel")


def test_a_config_map_gives_variables_files_and_the_router():
    maps = dedent("""\
        ---
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: config}
        data:
          LENGTH: "4096"
          epp.yaml: |
            apiVersion: llm-d.ai/v1alpha1
            kind: EndpointPickerConfig
            plugins: [{type: queue-scorer}]
        """)
    text = changed(("          env:\n            - {name: LENGTH, value: \"8192\"}\n",
                    "          envFrom: [{configMapRef: {name: config}}]\n")) + maps
    made = table(text)
    assert made["serve"]["max_model_len"] == 4096
    assert made["router"]["config"]["plugins"] == [{"type": "queue-scorer"}]


def test_roles_come_from_llm_d_s_labels():
    config = '--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    one = changed(("--max-model-len=$(LENGTH)", f"'{config}'"))
    parts = [changed(("labels: {app: llama}}", f"labels: {{llm-d.ai/role: {role}}}}}"),
                     ("name: llama\n", f"name: {role}\n"), text=one) for role in ("prefill", "decode")]
    assert {name: pool["role"] for name, pool in table("---\n".join(parts))["pools"].items()} == {
        "prefill": "prefill", "decode": "decode"}


@pytest.mark.parametrize("changes, problem", [
    ([("replicas: 3", "replicas: three")], "m.yaml:6: spec.replicas: expected a whole number, not 'three'"),
    ([("replicas: 3", "replicas: {{ .Values.n }}")], "m.yaml:6: is a Helm template; render it first"),
    ([("  replicas: 3", "\treplicas: 3")], "m.yaml:6: has a tab, and YAML is indented by spaces"),
    ([("  replicas: 3", "  replicas: 3\n  replicas: 4")], "m.yaml:7: the key 'replicas' is there twice"),
    ([("  replicas: 3", "  replica: 3")], "m.yaml:6: spec.replica: there is no such field; did you mean 'replicas'?"),
    ([("kind: Deployment", "kind: Deploiment")], "m.yaml:2: kind: 'Deploiment' is no kind that ksim reads; did you"),
    ([("kind: Deployment", "kind: RayCluster")], "m.yaml:2: kind: 'RayCluster' is no kind that ksim reads"),
    ([("nvidia.com/gpu: \"2\"", "cpu: 2")], "m.yaml:14: spec.template.spec.containers[0]: asks for no GPU"),
    ([("nvidia.com/gpu: \"2\"", "amd.com/gpu: 2")], "asks for amd.com/gpu; ksim simulates NVIDIA's GPUs"),
    ([("nvidia.com/gpu: \"2\"", "nvidia.com/gpu: 1")], "needs 2 GPUs (tensor_parallel_size 2), and its pod has 1"),
    ([("nvidia.com/gpu: \"2\"", "nvidia.com/mig-1g.10gb: 1")], "a part of a GPU; ksim simulates whole ones"),
    ([("NVIDIA-H100-80GB-HBM3", "Tesla-V100-SXM2-16GB")], "m.yaml:12: spec.template.spec.nodeSelector.nvidia.com/gpu"),
    ([("command: [vllm, serve]", "command: [ollama, serve]")], "asks for 2 GPUs, runs 'ollama serve"),
    ([("--tensor-parallel-size", "--tensor-paralel-size")], "m.yaml:19"),
    ([("args:\n", "args: x\n          arg:\n")], "args: expected a list, not 'x'"),
    ([("name: vllm\n", "name: vllm\n          imagePulPolicy: x\n")], "imagePulPolicy: there is no such field; did"),
    ([("  template:", "  template: &t"), ("metadata: {labels: {app: llama}}", "metadata: *t")], "has an alias of what"),
])
def test_what_is_wrong_is_named_by_file_line_and_key(changes, problem):
    assert problem in refusal(changed(*changes))


@pytest.mark.parametrize("text, problem", [
    ("kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\n", "build it first: kubectl kustomize"),
    ("{{- if .Values.x }}\nkind: Deployment\napiVersion: apps/v1\n{{- end }}\n", "m.yaml:1: is a Helm template"),
    ("<<<<<<< HEAD\nkind: Pod\napiVersion: v1\n=======\n>>>>>>> x\n", "conflict of a merge that is not resolved"),
    (SERVICE, "starts no engine"),
    ("kind: Deployment\napiVersion: apps/v1\n", "m.yaml:1: has no spec"),
    ("kind: Pod\napiVersion: v1\nspec: [1]\n", "m.yaml:3: spec: expected keys and values, not a list"),
    (changed(("replicas: 3", "replicas: 0")), "starts no engine"),
    (DEPLOYMENT + "---\n" + changed(("Llama-3.1-8B-Instruct", "Llama-3.1-70B")), "import them one by one"),
])
def test_a_text_that_cannot_be_a_scenario_is_refused(text, problem):
    assert problem in refusal(text)


def test_a_gpu_that_no_label_names_is_asked_for():
    text = changed(("      nodeSelector:\n        nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3\n", ""))
    assert "name it, such as --gpu h100" in refusal(text)
    assert table(text, gpu="h200")["gpu"] == "h200"


def test_aliases_of_aliases_do_not_fill_the_memory():
    rows = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    rows += [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]" for i in range(8)]
    assert "once its aliases are followed" in refusal("kind: Pod\napiVersion: v1\n" + "\n".join(rows) + "\n")


def test_ranks_that_share_experts_are_balanced_on_each_side():
    """vLLM balances data-parallel ranks itself; where engines prefill for others, it does so on each side."""
    config = '--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    wide = changed(("- --tensor-parallel-size\n            - \"2\"\n", "- --data-parallel-size=2\n"),
                   ("--max-model-len=$(LENGTH)", f"'{config}'"), ("Llama-3.1-8B-Instruct", "Llama-3.1-8B"))
    parts = [changed(("labels: {app: llama}}", f"labels: {{llm-d.ai/role: {role}}}}}"), text=wide)
             for role in ("prefill", "decode")]
    assert table("---\n".join(parts))["pair_router"] == {
        "name": "each_side", "prefill": "vllm_dp_balancer", "decode": "vllm_dp_balancer"}

"""Autoscalers of manifests scale the pools of their targets, and what is wrong in one is named by line and key."""

from typing import Any

import pytest

from ksim.deploy.commands import ImportOptions
from ksim.deploy.exporting import exported
from ksim.deploy.importing import assembled, joined, read, scenario_text
from ksim.deploy.texts import Pasted
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import KsimError
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from tests.deploy.autoscalers import BUDGET, FOLLOWS, GRAPH, HPA, KEDA, NONE, UNSET, VARIANT
from tests.deploy.texts import DEPLOYMENT, SCRIPT


def changed(text: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    return text


def imported(*texts: str, **wanted: Any) -> Any:
    said = ImportOptions(**wanted)
    return assembled(joined([read(Pasted(text, f"{number}.yaml"), said) for number, text in enumerate(texts)]), said)


def pool(*texts: str, **wanted: Any) -> Any:
    return imported(*texts, **wanted).table["pools"]["llama"]


def refusal(*texts: str, **wanted: Any) -> str:
    with pytest.raises(KsimError) as caught:
        imported(*texts, **wanted)
    return str(caught.value)


@pytest.mark.parametrize("texts", [(DEPLOYMENT, HPA), (HPA, DEPLOYMENT), (DEPLOYMENT + "---\n" + HPA,)])
def test_an_hpa_scales_the_pool_of_its_target(texts):
    made = imported(*texts)
    scaled = made.table["pools"]["llama"]
    assert (scaled["replicas"], scaled["max_replicas"]) == (3, 8)
    hpa = plugin("autoscaling", Choice.of(scaled["autoscaler"]))
    assert (hpa.min_replicas, hpa.max_replicas) == (2, 8) and hpa.behavior.down_window == 60
    assert [metric.target.milli for metric in hpa.metrics] == [2500, 20_000]
    assert made.table["nodes"] == 2  # 8 replicas of 2 GPUs


def test_the_whole_can_be_built_and_is_written():
    text = scenario_text([Pasted(DEPLOYMENT, "a.yaml"), Pasted(HPA, "b.yaml")], ImportOptions())
    assert "[pools.llama.autoscaler]" in text and "scaleTargetRef" not in text


@pytest.mark.parametrize("scaler", [
    HPA, changed(KEDA, ("  minReplicaCount", "  maxReplicaCount: 9\n  minReplicaCount"))])
def test_what_is_exported_reads_back(scaler, tmp_path):
    ends = ("      containers:", "      terminationGracePeriodSeconds: 130\n      containers:")
    text = scenario_text([Pasted(changed(DEPLOYMENT, ends), "a.yaml"), Pasted(scaler, "b.yaml")], ImportOptions())
    (tmp_path / "fleet.toml").write_text(text, encoding="utf-8")
    manifest = exported(tmp_path / "fleet.toml", "kubernetes")[""]
    assert pool(manifest) == pool(changed(DEPLOYMENT, ends), scaler)
    name = Scenario.read(tmp_path / "fleet.toml").pools["llama"].autoscaler.name
    lines = exported(tmp_path / "fleet.toml", "vllm")[""]
    assert f"llama: autoscaler = '{name}'; replicas are those at the start" in lines


def test_stateful_sets_and_groups_of_pods_are_scaled_too():
    stateful = changed(DEPLOYMENT, ("kind: Deployment", "kind: StatefulSet"))
    assert pool(stateful, changed(HPA, ("kind: Deployment", "kind: StatefulSet")))["max_replicas"] == 8
    group = changed(HPA, ("kind: Deployment, name: llama", "kind: LeaderWorkerSet, name: wide"))
    scaled = imported(SCRIPT, group).table["pools"]["wide"]
    assert (scaled["replicas"], scaled["max_replicas"]) == (2, 8)


def test_one_replica_that_is_scaled_is_a_pool():
    assert "pools" not in imported(changed(DEPLOYMENT, ("replicas: 3", "replicas: 1"))).table
    assert pool(changed(DEPLOYMENT, ("replicas: 3", "replicas: 1")), HPA)["max_replicas"] == 8


@pytest.mark.parametrize(("scaler", "replicas"), [
    (HPA, 2), (KEDA, 1), (changed(KEDA, ("  minReplicaCount: 1\n", "")), 0)])
def test_replicas_that_nobody_states_are_the_fewest(scaler, replicas):
    made = imported(UNSET, scaler)
    assert made.table["pools"]["llama"]["replicas"] == replicas
    assert any(note.word == f"replicas = {replicas}" for note in made.remarks)


def test_no_replicas_at_the_start_are_a_pool_only_if_they_are_scaled():
    assert pool(NONE, KEDA)["replicas"] == 0
    assert "starts no engine" in refusal(NONE)
    notes = imported(NONE, changed(DEPLOYMENT, ("name: llama", "name: other"))).idle
    assert ("llama", "has 0 replicas") in [(note.word, note.why) for note in notes]


@pytest.mark.parametrize(("wanted", "most"), [({}, 100), ({"nodes": 3}, 12), ({"nodes": 30}, 100)])
def test_a_scaled_object_without_a_limit_has_kedas_or_what_fits(wanted, most):
    made = imported(DEPLOYMENT, KEDA, **wanted)
    assert made.table["pools"]["llama"]["max_replicas"] == most
    assert f"max_replicas = {most}" in [note.word for note in made.remarks]
    assert "maxReplicaCount" not in made.table["pools"]["llama"]["autoscaler"]


def test_other_engines_have_their_gpus_first():
    other = changed(DEPLOYMENT, ("name: llama", "name: other"))
    assert pool(DEPLOYMENT, other, KEDA, nodes=3)["max_replicas"] == 9
    assert "has no GPUs for a replica" in refusal(DEPLOYMENT, changed(other, ("replicas: 3", "replicas: 12")), KEDA,
                                                  nodes=3)


def test_gpus_may_pass_between_pools_that_are_scaled():
    texts = [DEPLOYMENT, KEDA, *(changed(text, ("name: llama", "name: other")) for text in (DEPLOYMENT, KEDA))]
    made = imported(*texts, nodes=3).table
    assert {name: pool["max_replicas"] for name, pool in made["pools"].items()} == {"llama": 12, "other": 12}
    Fleet.of(Scenario.of(made))


def test_a_worker_of_dynamo_is_scaled_by_its_adapter():
    reference = "{kind: DynamoGraphDeploymentScalingAdapter, name: agg-vllmworker}"
    made = imported(GRAPH, changed(KEDA, ("{name: llama}", reference)), gpu="h100", nodes=1)
    assert made.table["pools"]["VllmWorker"]["max_replicas"] == 8
    assert made.table["router"]["name"] == "dynamo_kv" and "router" not in imported(GRAPH, gpu="h100").table


def test_an_hpa_of_what_starts_no_engine_has_no_effect():
    proxy = ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: proxy}\nspec: {template: {spec: {containers:"
             " [{name: nginx, image: nginx}]}}}\n")
    cpu = changed(HPA, ("name: llama}", "name: proxy}"), ("autoscaling/v2", "autoscaling/v1"))
    made = imported(DEPLOYMENT, proxy, cpu)
    assert made.table == imported(DEPLOYMENT).table
    assert ("HorizontalPodAutoscaler llama-hpa", "scales Deployment proxy, which starts no engine") in [
        (note.word, note.why) for note in made.idle]


def test_wva_decides_what_an_hpa_follows():
    made = imported(DEPLOYMENT, VARIANT, FOLLOWS)
    assert made.table["pools"]["llama"]["autoscaler"] == {"name": "wva"}
    assert made.table["pools"]["llama"]["max_replicas"] == 8
    assert any("follows llm-d's WVA" in note.why for note in made.remarks)
    assert imported(DEPLOYMENT, VARIANT, HPA).table == imported(DEPLOYMENT, HPA).table
    assert imported(DEPLOYMENT, VARIANT).table == imported(DEPLOYMENT).table
    assert imported(DEPLOYMENT, changed(VARIANT, ("modelID", "modelProfile"))).table == imported(DEPLOYMENT).table
    assert "nobody gives the metric 'wva_desired_replicas'" in refusal(DEPLOYMENT, FOLLOWS)


def test_wva_scales_the_variants_of_a_model_together():
    dear = [changed(text, ("name: llama", "name: dear")) for text in (DEPLOYMENT, FOLLOWS)]
    variant = changed(VARIANT, ("name: llama", "name: dear"), ("10.0", "40"))
    texts = [DEPLOYMENT, dear[0], VARIANT, variant, FOLLOWS, dear[1]]
    made = imported(*texts).table
    assert made["autoscaler"] == {"name": "wva", "costs": {"llama": 10.0, "dear": 40.0}}
    assert all("autoscaler" not in pool for pool in made["pools"].values())
    third = changed(DEPLOYMENT, ("name: llama", "name: third"))
    assert "third has no VariantAutoscaling" in refusal(*texts, third)


def lifecycle(*changes: tuple[str, str], text: str = DEPLOYMENT) -> tuple[Any, list[str]]:
    made = imported(changed(text, *changes), HPA)
    return made.table["pools"]["llama"].get("lifecycle"), [note.word for note in made.remarks]


def test_replicas_that_are_scaled_end_as_the_manifest_says():
    ends, notes = lifecycle()
    assert ends == {"termination_grace_period": "30 s"} and "termination_grace_period = 30 s" in notes
    grace = ("      containers:", "      terminationGracePeriodSeconds: 130\n      containers:")
    hook = "lifecycle: {preStop: {exec: {command: [sh, -c, sleep 15]}}}"
    sleeps = ("          command:", f"          {hook}\n          command:")
    strategy = ("  selector:", "  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 10%}}\n  selector:")
    ends, notes = lifecycle(grace, sleeps, strategy)
    assert ends == {"termination_grace_period": "130 s", "pre_stop": "15 s",
                    "rolling_update": {"max_surge": 1, "max_unavailable": "10%"}}
    assert "strategy" in notes and "termination_grace_period = 30 s" not in notes
    idle = imported(changed(DEPLOYMENT, grace, sleeps, strategy))
    assert {"terminationGracePeriodSeconds", "lifecycle", "strategy"} <= {note.word for note in idle.idle}
    assert idle.table == imported(DEPLOYMENT).table


@pytest.mark.parametrize(("hook", "seconds"), [
    ("sleep: {seconds: 7}", "7 s"), ("exec: {command: [/bin/sleep, '2.5']}", "2.5 s"),
    ("exec: {command: [/bin/sh, -c, exec sleep 5s]}", "5 s"), ("httpGet: {path: /drain, port: 8000}", "0 s"),
    ("exec: {command: [sh, -c, sleep 5; drain]}", "0 s")])
def test_a_pre_stop_hook_sleeps(hook, seconds):
    ends, notes = lifecycle(("          command:", f"          lifecycle: {{preStop: {{{hook}}}}}\n          command:"))
    assert ends["pre_stop"] == seconds and ("preStop" in notes) == (seconds == "0 s")


def test_deployments_that_are_recreated_lack_all_replicas_at_once():
    ends, notes = lifecycle(("  selector:", "  strategy: {type: Recreate}\n  selector:"))
    assert ends["rolling_update"] == {"max_surge": 0, "max_unavailable": "100%"} and "Recreate" in notes


@pytest.mark.parametrize("texts", [(DEPLOYMENT, BUDGET), (BUDGET, DEPLOYMENT, HPA)])
def test_a_disruption_budget_is_that_of_the_pool_whose_pods_it_selects(texts, tmp_path):
    made = imported(*texts)
    assert made.table["pools"]["llama"]["lifecycle"]["disruption_budget"] == {"min_available": "50%"}
    assert ("PodDisruptionBudget llama", "a node is drained when drains says so") in [
        (note.word, note.why) for note in made.remarks]
    path = tmp_path / "made.toml"
    path.write_text(scenario_text([Pasted(text, f"{number}.yaml") for number, text in enumerate(texts)],
                                  ImportOptions()))
    again = imported(exported(path, "kubernetes")[""]).table["pools"]["llama"]
    assert again["lifecycle"]["disruption_budget"] == {"min_available": "50%"}


@pytest.mark.parametrize(("selector", "guards"), [
    ("matchLabels: {app: other}", False), ("matchLabels: {}", True),
    ("matchExpressions: [{key: app, operator: In, values: [llama, b]}]", True),
    ("matchExpressions: [{key: app, operator: NotIn, values: [llama]}]", False),
    ("matchExpressions: [{key: tier, operator: DoesNotExist}, {key: app, operator: Exists}]", True)])
def test_a_budget_selects_pods_by_their_labels(selector, guards):
    made = imported(DEPLOYMENT, changed(BUDGET, ("matchLabels: {app: llama}", selector)))
    assert ("disruption_budget" in made.table["pools"]["llama"].get("lifecycle", {})) is guards
    assert ("PodDisruptionBudget llama" in [note.word for note in made.idle]) is not guards


@pytest.mark.parametrize(("texts", "says"), [
    ((DEPLOYMENT, changed(HPA, ("name: llama}", "name: lama}"))),
     "1.yaml:5: spec.scaleTargetRef: there is no Deployment lama; engines are started by Deployment llama"),
    ((HPA,), "engines are started by none"),
    ((DEPLOYMENT, HPA, KEDA), "scales Deployment llama, as HorizontalPodAutoscaler llama-hpa does (1.yaml:1)"),
    ((DEPLOYMENT, changed(HPA, ("num_requests_running", "num_request_running"))),
     "1.yaml:13: spec.metrics[1]: nobody gives the metric 'vllm:num_request_running' of engines; did you mean"),
    ((DEPLOYMENT, changed(HPA, ("minReplicas", "minReplcas"))), "1.yaml:6: spec.minReplcas: unknown key; did you mean"),
    ((DEPLOYMENT, changed(HPA, ("periodSeconds: 30", "periodSecond: 30"))),
     "1.yaml:18: spec.behavior.scaleDown.policies[0].periodSecond: unknown key"),
    ((DEPLOYMENT, changed(HPA, ("  maxReplicas: 8\n", ""))), "1.yaml:4: spec.maxReplicas: is missing"),
    ((DEPLOYMENT, changed(HPA, ("maxReplicas: 8", "maxReplicas: 2"))),
     "1.yaml:7: spec.maxReplicas: is 2, and Deployment llama has 3 replicas"),
    ((DEPLOYMENT, "apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: a}\nspec:\n"
      "  scaleTargetRef: {kind: Deployment, name: llama}\n  maxReplicas: 8\n  targetCPUUtilizationPercentage: 80\n"),
     "1.yaml:7: spec.targetCPUUtilizationPercentage: scales by the CPU that pods use"),
    ((DEPLOYMENT, changed(KEDA, ("type: prometheus", "type: cron"))), "1.yaml:10: spec.triggers[0]: 'type' must be in"),
    ((DEPLOYMENT, changed(KEDA, ("sum(vllm", "rate(vllm"))), "1.yaml:10: spec.triggers[0]: the query"),
    ((DEPLOYMENT, changed(KEDA, ("threshold:", "treshold:"))),
     "1.yaml:14: spec.triggers[0].metadata.treshold: unknown key; did you mean threshold"),
    ((DEPLOYMENT, changed(KEDA, ("transfer-hpa-ownership", "paused-replicas"))), "1.yaml:5: metadata.annotations"),
    ((DEPLOYMENT, changed(BUDGET, ("minAvailable: 50%, ", ""))),
     "1.yaml:4: spec: a PodDisruptionBudget needs one of minAvailable and maxUnavailable"),
    ((DEPLOYMENT, BUDGET, BUDGET), "2.yaml:1: selects the pods of llama, as PodDisruptionBudget llama does (1.yaml:1)"),
    ((DEPLOYMENT, changed(BUDGET, ("matchLabels: {app: llama}", "matchExpressions: [{key: a, operator: Is}]"))),
     "must be one of In, NotIn, Exists, DoesNotExist, not 'Is'"),
    ((changed(DEPLOYMENT, ("  selector:", "  strategy: {rollingUpdate: {maxSurge: half}}\n  selector:")), HPA),
     "0.yaml:7: spec.strategy.rollingUpdate.maxSurge: 'half' is neither a number of pods nor a percentage"),
    ((changed(DEPLOYMENT, ("  selector:", "  strategy: {type: Rolling}\n  selector:")), HPA),
     "0.yaml:7: spec.strategy.type: must be RollingUpdate or Recreate"),
    ((DEPLOYMENT, changed(BUDGET, ("50%", "half"))), "neither a number of pods nor a percentage"),
    ((DEPLOYMENT, changed(BUDGET, ("selector", "selectors"))), "1.yaml:4: spec.selectors: there is no such field"),
])
def test_what_is_wrong_is_named_by_line_and_key(texts, says):
    assert says in refusal(*texts)

"""Decisions of the HPA over time: metric values and targets in thousandths, seconds."""

from collections.abc import Iterator, Sequence
from typing import Any

from ksim.autoscaling.hpa import Controller, Outcome, Reading
from ksim.autoscaling.pod_metrics import Pod, Scale
from ksim.autoscaling.scaling_rules import Behavior, ScalingPolicy, ScalingRules
from ksim.validation.autoscalers import Case
from ksim.validation.schedules import Difference


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """Where replicas, the wish of the metric, or the reasons differ.

    With `newer` replicas, later steps are not those that were recorded: there, replicas alone count.
    """
    controller = Controller(case["min"], case["max"], behavior(case["behavior"]))
    newer, replicas = case.get("newer"), case["start"]
    for index, step in enumerate(case["steps"]):
        outcome = controller.reconcile(Scale(replicas, pods(step, replicas, newer is not None)),
                                       [reading(case, step)], step["t"])
        replicas = outcome.replicas
        expected = {"replicas": newer[index]} if newer else {"replicas": step["replicas"], **_reasons(step)}
        got = {"replicas": replicas} | ({} if newer else _own(outcome, expected))
        for key, value in expected.items():
            if got[key] != value:
                yield Difference(index, key, value, got[key])


def _reasons(step: Case) -> dict[str, Any]:
    return {key: step[key] for key in ("from_metric", "limited", "stabilised") if key in step}


def _own(outcome: Outcome, expected: Case) -> dict[str, Any]:
    own = {"from_metric": outcome.wish, "limited": outcome.reasons.limited, "stabilised": outcome.reasons.able}
    return {key: own[key] for key in own if key in expected}


def pods(step: Case, replicas: int, follows: bool) -> list[Pod]:
    """The pods of *step*: as many as it says, or as *replicas* where what was decided before differs."""
    count = replicas if follows else step["pods"]
    ready = step.get("ready", count)
    ages = step.get("age_s", [3600.0] * count)
    return [Pod(ready=index < ready, age=ages[index] if index < len(ages) else 3600.0) for index in range(count)]


def reading(case: Case, step: Case) -> Reading:
    """The metric of *case* as *step* has it."""
    kind, target = case["metric"], case["target"]
    if kind in ("pods", "cpu"):
        values = dict(enumerate(step["values"]))
        if kind == "pods":
            return lambda scale: scale.of_pods(values, target)
        requests = {index: int(case["request"]) for index in range(step["pods"])}
        return lambda scale: scale.of_utilization(values, requests, target)
    total = step["total"]
    if kind in ("external_value", "object_value"):
        return lambda scale: scale.of_value(total, target)
    return lambda scale: scale.of_average(total, target)


def behavior(table: Case | None) -> Behavior | None:
    """The behavior of a case, which is not the same empty as none."""
    return None if table is None else Behavior(rules(table.get("up")), rules(table.get("down")))


def rules(table: Case | None) -> ScalingRules:
    """The rules of one direction; Kubernetes' own for None."""
    if table is None:
        return ScalingRules()
    return ScalingRules(table.get("window_s"), table.get("select", "max").capitalize(),
                        _policies(table.get("policies")))


def _policies(listed: Sequence[Case] | None) -> list[ScalingPolicy] | None:
    if listed is None:
        return None
    return [ScalingPolicy(policy["type"].capitalize(), policy["value"], policy["period_s"]) for policy in listed]

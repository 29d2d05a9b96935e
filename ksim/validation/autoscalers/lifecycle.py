"""Rules of Kubernetes for the ends of pods: rolling updates, disruption budgets, termination."""

from collections.abc import Iterator, Mapping
from typing import Any

from ksim.autoscaling.kubernetes import DisruptionBudget, RollingUpdate, Termination
from ksim.validation.autoscalers import Case
from ksim.validation.schedules import Difference

Row = Mapping[str, Any]


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """The keys in which ours differ from what is expected."""
    got = {"rolling_update": _update, "disruption_budget": _budget, "termination": _end}[case["part"]](case)
    for key, value in case["expect"].items():
        if got.get(key) != value:
            yield Difference(None, key, value, got.get(key))


def _update(case: Case) -> Row:
    update = RollingUpdate(case["replicas"], case["max_surge"], case["max_unavailable"])
    return {"surge": update.surge, "unavailable": update.unavailable, "most_pods": update.most_pods,
            "least_available": update.least_available, "new_pods_at_once_first": update.first_new,
            "old_pods_gone_first": update.first_gone}


def _budget(case: Case) -> Row:
    budget = DisruptionBudget(case["replicas"], case["min_available"], case["max_unavailable"])
    return {"desired_healthy": budget.desired_healthy, "evictions_allowed": budget.evictions(case["healthy"])}


def _end(case: Case) -> Row:
    end = Termination(case["grace_s"], case["prestop_s"], case["drain_needs_s"])
    return {"sigterm_at_s": end.sigterm, "gone_at_s": end.gone, "killed": end.killed}

"""Decisions of KEDA, and rules of Kubernetes for the ends of pods: updates, disruption budgets, termination."""

from collections.abc import Iterator, Mapping
from typing import Any

from ksim.autoscaling.keda import Fallback, Limits, Poll, Trigger
from ksim.autoscaling.kubernetes import DisruptionBudget, RollingUpdate, Termination
from ksim.autoscaling.pod_metrics import MetricError, Pod, Scale
from ksim.specs.pools import DisruptionBudgetSettings
from ksim.validation.autoscalers import Case
from ksim.validation.schedules import Difference

Row = Mapping[str, Any]


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """The keys that differ, but for `why`, which is prose."""
    got = _REPLAYS[case["part"]](case)
    for key, value in case["expect"].items():
        if key != "why" and got.get(key) != value:
            yield Difference(None, key, value, got.get(key))


def _activation(case: Case) -> Row:
    replicas, given = case["fallback_replicas"], {}
    if case["cooldown_s"] is not None:
        given["cooldown_period"] = case["cooldown_s"]
    if case["initial_cooldown_s"] is not None:
        given["initial_cooldown_period"] = case["initial_cooldown_s"]
    limits = Limits(case["min"], case["idle"], fallback=None if replicas is None else Fallback(3, replicas),
                    paused=case["pause"] or "", **given)
    poll = Poll(case["active"] or case["forced"], case["error"], case["since_active_s"], case["since_created_s"])
    return {"replicas": limits.after(poll, case["replicas"])}


def _fallback(case: Case) -> Row:
    fallback = Fallback(case["failure_threshold"], case["fallback_replicas"], case["behavior"])
    ready = case["ready"] if case["metric_kind"] == "value" else None
    try:
        milli = fallback.metric(case["target"], case["failures_counted"], case["current"], ready)
    except MetricError:
        return {"metric": None}
    return {"metric_milli": milli, "wanted": fallback.wanted(case["current"])}


def _threshold(case: Case) -> Row:
    """Whether a trigger is active and, if it is, what comes of it: from 0 the minimum or 1, and else the HPA's wish."""
    trigger = Trigger("prometheus", {"query": "sum(num_requests_waiting)", "threshold": case["threshold"],
                                     "activationThreshold": case["activation_threshold"]})
    active, replicas = trigger.is_active(case["value"]), case["replicas"]
    least = max(1, case["min"])
    wish = None
    if active:
        wish = trigger.wish(Scale(replicas, [Pod()] * replicas), case["value"]).replicas if replicas else least
        wish = min(max(wish, least), case["max"])
    return {"active": active, "replicas_before_windows_and_rates": wish}


def _update(case: Case) -> Row:
    update = RollingUpdate(case["replicas"], case["max_surge"], case["max_unavailable"])
    return {"surge": update.surge, "unavailable": update.unavailable, "most_pods": update.most_pods,
            "least_available": update.least_available, "new_pods_at_once_first": update.first_new,
            "old_pods_gone_first": update.first_gone}


def _budget(case: Case) -> Row:
    settings = DisruptionBudgetSettings(case["min_available"], case["max_unavailable"])
    budget = DisruptionBudget(case["replicas"], settings)
    return {"desired_healthy": budget.desired_healthy, "evictions_allowed": budget.evictions(case["healthy"])}


def _end(case: Case) -> Row:
    end = Termination(case["grace_s"], case["prestop_s"], case["drain_needs_s"])
    return {"sigterm_at_s": end.sigterm, "gone_at_s": end.gone, "killed": end.killed}


_REPLAYS = {"activation": _activation, "fallback": _fallback, "activation_threshold": _threshold,
            "rolling_update": _update, "disruption_budget": _budget, "termination": _end}

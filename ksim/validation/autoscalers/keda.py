"""Decisions of KEDA: one poll of its operator, what its HPA is given in failure, and its thresholds."""

from collections.abc import Iterator, Mapping
from typing import Any

from ksim.autoscaling.keda import Fallback, Limits, Poll, Trigger
from ksim.autoscaling.pod_metrics import MetricError, Pod, Scale
from ksim.validation.autoscalers import Case
from ksim.validation.schedules import Difference

Row = Mapping[str, Any]


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """The keys that differ, but for `why`, which is prose."""
    got = {"activation": _activation, "fallback": _fallback, "activation_threshold": _threshold}[case["part"]](case)
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

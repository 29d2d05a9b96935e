"""The tables of the HPA's own tests: one reconciliation, windows, events, wishes of metrics, limits of rates.

Values and targets are in thousandths, CPU in per cent and two containers to a pod, ages in seconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ksim.autoscaling.hpa import Controller, Outcome, Reading
from ksim.autoscaling.pod_metrics import MetricError, Pod, Scale, Wish
from ksim.autoscaling.scaling_rules import Behavior, Rates, Sample, changed, plain_window, window
from ksim.validation.autoscalers import Case
from ksim.validation.autoscalers.hpa_series import rules
from ksim.validation.schedules import Difference

#: A time that all ages fit before.
_NOW = 1e6
#: Reasons of the API server, not of a decision: what is asked for is not carried out, or nobody is asked.
_UNREACHABLE = {"FailedGetScale", "FailedUpdateScale", "InvalidSelector"}
#: The reason of a metric that failed, by its kind; of any other kind, that there is none such.
_FAILED = {"resource": "FailedGetResourceMetric", "container_resource": "FailedGetContainerResourceMetric",
           "pods": "FailedGetPodsMetric", "object": "FailedGetObjectMetric", "external": "FailedGetExternalMetric"}
#: Upstream's tests of events look at the last so many seconds.
_PERIOD = 60.0
Row = Mapping[str, Any]


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """The keys in which ours differ from what is expected."""
    got = _REPLAYS[case["part"]](case)
    for key, value in case["expect"].items():
        if got.get(key) != value:
            yield Difference(None, key, value, got.get(key))


def _samples(listed: Sequence[Row], key: str) -> list[Sample]:
    return [Sample(row[key], _NOW - row["age_s"]) for row in listed]


def _behavior(case: Case) -> Behavior:
    return Behavior(rules(case.get("up")), rules(case.get("down")))


# One reconciliation.

def _reconcile(case: Case) -> Row:
    reasons = case["expect"].get("reasons", {})
    if _UNREACHABLE & {*reasons.values()}:
        return {"replicas": case["spec_replicas"], "reasons": reasons}
    has_behavior = bool(case.get("up") or case.get("down"))
    least = 1 if case["min"] is None else case["min"]
    controller = Controller(least, case["max"], _behavior(case) if has_behavior else None)
    factor = case.get("up_limit_factor", 2)
    controller.plain_limit = lambda current: max(factor * current, 4)
    # A test begins without past wishes, but where it says that its first size was one.
    controller.wishes = None if reasons.get("AbleToScale") == "ScaleDownStabilized" else []
    # Upstream's fake cluster has a pod for each request of CPU.
    count = len(case.get("cpu_request", ())) or case["status_replicas"]
    scale = Scale(case["spec_replicas"], _pods(case.get("pods", {}), count), status_replicas=case["status_replicas"])
    outcome = controller.reconcile(scale, _readings(case), _NOW)
    return {"replicas": outcome.replicas, "reasons": _reasons(outcome, case, reasons)}


def _reasons(outcome: Outcome, case: Case, expected: Row) -> Row:
    """The conditions of *outcome* that the case states; that a change was made is said last."""
    own = outcome.reasons
    able = "SucceededRescale" if outcome.replicas != case["spec_replicas"] else own.able
    active = own.active if own.active in ("ValidMetricFound", "ScalingDisabled") else _FAILED.get(
        case["metrics"][0]["kind"], "InvalidMetricSourceType")
    found = {"AbleToScale": able, "ScalingActive": active, "ScalingLimited": own.limited}
    return {key: found[key] for key in expected}


def _readings(case: Case) -> list[Reading]:
    """The metrics of a case.  Of several, external ones and those of no kind failed when they were recorded, which
    Kubernetes 1.20 passed over."""
    metrics = [metric for metric in case["metrics"] if metric["kind"] in _FAILED and metric["kind"] != "external"]
    return [_reading(case, metric) for metric in metrics if len(case["metrics"]) > 1] or [
        _reading(case, metric) for metric in case["metrics"]]


def _reading(case: Case, metric: Row) -> Reading:
    values, kind = case["values"], metric["kind"]
    if kind not in _FAILED or not values:
        return _no_metric
    if "target_percent" in metric:
        requests = dict(enumerate(case.get("cpu_request", ())))
        return lambda scale: scale.of_utilization(dict(enumerate(values)), requests, metric["target_percent"])
    if kind in ("resource", "container_resource", "pods"):
        return lambda scale: scale.of_pods(dict(enumerate(values)), metric["target_average"], cpu=kind != "pods")
    total = sum(values) if kind == "external" else values[0]
    if "target_value" in metric:
        return lambda scale: scale.of_value(total, metric["target_value"])
    return lambda scale: scale.of_average(total, metric["target_average"])


def _no_metric(scale: Scale) -> Wish:
    raise MetricError("there is no such metric")


def _pods(said: Row, count: int) -> list[Pod]:
    """The pods of a case; what it does not say of them is as of old pods that are ready."""
    number = max([count, *(len(listed) for listed in said.values())])

    def of(key: str, index: int, default: Any) -> Any:
        listed = said.get(key, ())
        return listed[index] if index < len(listed) else default

    return [Pod(of("ready", index, True), of("phase", index, "running"), of("terminating", index, False),
                of("age_s", index, 3600.0)) for index in range(number)]


# Windows and events.

def _plain_window(case: Case) -> Row:
    wishes = _samples(case["recommendations"], "replicas")
    return {"replicas": plain_window(wishes, case["wish"], _NOW), "kept": len(wishes)}


def _window(case: Case) -> Row:
    behavior = Behavior(rules({"window_s": case["up_window_s"]}), rules({"window_s": case["down_window_s"]}))
    wishes = _samples(case["recommendations"], "replicas")
    replicas = window(wishes, behavior, case["replicas"], case["wish"], _NOW)
    return {"replicas": replicas, "recommendations": [wish.replicas for wish in wishes]}


def _event(case: Case) -> Row:
    """A change is remembered, unless there is no behavior."""
    up, events = "up" in case, _samples(case["before"], "change")
    within = changed(events, _PERIOD, _NOW)
    if case["up" if up else "down"] is not None:
        rates = Rates(_behavior(case), *((events, []) if up else ([], events)))
        rates.record(0 if up else case["change"], case["change"] if up else 0, _NOW)
    return {"after": [event.replicas for event in events], "change_in_period": within}


def _limits(case: Case) -> Row:
    if case.get("up") is None and case.get("down") is None and not (case["up_events"] or case["down_events"]):
        replicas, reason = Controller(case["min"], case["max"]).plain_limits(case["replicas"], case["wish"])
        return {"replicas": replicas, "reason": reason}
    controller = Controller(case["min"], case["max"], _behavior(case))
    controller.rates.ups = _samples(case["up_events"], "change")
    controller.rates.downs = _samples(case["down_events"], "change")
    replicas, reason = controller.limits(case["replicas"], case["wish"], _NOW)
    return {"replicas": replicas, "reason": reason}


# The wish of one metric.

def _wish(case: Case) -> Row:
    metric, count = case["metric"], case["replicas"]
    scale = Scale(count, _pods(case.get("pods", {}), count))
    try:
        wish = _calculated(metric)(scale)
    except MetricError:
        return {"error": True}
    return {"replicas": wish.replicas, "percent": wish.value, "value": wish.value, "raw_average": wish.raw}


def _calculated(metric: Row) -> Callable[[Scale], Wish]:
    kind = metric["kind"]
    if kind == "resource":
        return _resource(metric)
    if kind == "pods":
        return lambda scale: scale.of_pods(dict(enumerate(metric["values"])), metric["target_average"])
    total = sum(metric["values"])
    if kind.endswith("_average"):
        return lambda scale: scale.of_average(total, metric["target_average"])
    return lambda scale: scale.of_value(total, metric["target_value"])


def _resource(metric: Row) -> Callable[[Scale], Wish]:
    """Use of both containers, or of one; of a container that a pod has not, there is no metric."""
    containers, usage = [f"container{n + 1}" for n in range(2)], metric["usage_per_container"]
    chosen = [containers.index(metric["container"])] if "container" in metric else range(2)
    shift = 1000 if metric.get("metric_of_unknown_pods") else 0
    used = {index + shift: sum(of_pod[container] for container in chosen)
            for index, of_pod in enumerate(usage) if all(container < len(of_pod) for container in chosen)}
    requests = {index: request * len(chosen) for index, request in enumerate(metric["request_per_container"])}
    if "target_percent" in metric:
        return lambda scale: scale.of_utilization(used, requests, metric["target_percent"])
    return lambda scale: scale.of_pods(used, metric["target_average"], cpu=True)


_REPLAYS: Mapping[str, Callable[[Case], Row]] = {
    "one_reconcile": _reconcile, "stabilise_without_behavior": _plain_window, "stabilise": _window,
    "store_event": _event, "limit_rate": _limits, "replicas_from_metric": _wish}

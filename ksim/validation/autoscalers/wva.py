"""Decisions of llm-d's workload variant autoscaler: analysers of saturation, the optimiser, the model of queues."""

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from ksim.autoscaling.queue_model import BatchTimes, QueueModel, QueueTarget, TargetTooTight
from ksim.autoscaling.saturation import (
    ReplicaState,
    SaturationSettings,
    TokenAnalyser,
    VariantState,
    analyse_shares,
    targets_by_shares,
    targets_by_tokens,
)
from ksim.validation.autoscalers import Case
from ksim.validation.schedules import Difference

#: How far a number may be off: recorded ones have so many digits, and those of the queue model are of single precision.
_RECORDED, _SINGLE = 1e-5, 1e-3
Row = Mapping[str, Any]


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """The keys in which ours differ from what is expected."""
    replay = {"saturation_v1": _shares, "saturation_v2": _tokens, "queue_model": _queue}[case["part"]]
    yield from _between(case["expect"], replay(case), _SINGLE if case["part"] == "queue_model" else _RECORDED)


def _between(expected: Any, got: Any, close: float, key: str = "") -> Iterator[Difference]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for name, value in expected.items():
            yield from _between(value, got.get(name), close, f"{key}.{name}" if key else name)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from _between(one, other, close, f"{key}[{index}]")
    elif not _is_close(expected, got, close):
        yield Difference(None, key, expected, got)


def _is_close(expected: Any, got: Any, close: float) -> bool:
    if isinstance(expected, bool) or not isinstance(expected, int | float) or not isinstance(got, int | float):
        return bool(expected == got)
    return isclose(expected, got, rel_tol=close, abs_tol=1e-9 if close == _RECORDED else 1e-3)


def _settings(case: Case) -> SaturationSettings:
    names = {"kv_threshold": "kv_cache_threshold", "queue_threshold": "queue_length_threshold"}
    return SaturationSettings(**{names.get(key, key): value for key, value in case["config"].items()})


def _states(case: Case) -> list[VariantState]:
    return [VariantState(row["variant"], row["replicas"], row["desired"], row["pending"]) for row in case["states"]]


def _replicas(rows: Sequence[Row]) -> list[ReplicaState]:
    return [ReplicaState(row["variant"], row["kv_use"], row["queue"], row["cost"], row["gpu"], row.get("kv_tokens", 0),
                         tokens_in_use=row.get("tokens_in_use", 0), prompt=row.get("input", 0.0),
                         output=row.get("output", 0.0), hit_rate=row.get("prefix_hit", 0.0)) for row in rows]


def _shares(case: Case) -> Row:
    replicas = _replicas(case["replicas"])
    found = analyse_shares(replicas, _settings(case))
    return {"not_saturated": found.free, "total": found.total, "spare_kv": found.spare_kv,
            "spare_queue": found.spare_queue, "scale_up": found.scale_up, "scale_down_safe": found.scale_down_safe,
            "targets": targets_by_shares(found, replicas, _states(case))}


def _tokens(case: Case) -> list[Row]:
    analyser, states = TokenAnalyser(_settings(case)), _states(case)
    queue = case.get("scheduler_queue", {"requests": 0, "bytes": 0})
    return [_analysed(analyser, rows, states, (queue["requests"], queue["bytes"])) for rows in case["steps"]]


def _analysed(analyser: TokenAnalyser, rows: Sequence[Row], states: Sequence[VariantState],
              queued: tuple[int, int]) -> Row:
    found = analyser.analyse(_replicas(rows), states, queued)
    return {"demand": found.demand, "supply": found.supply, "required": found.required, "spare": found.spare,
            "targets": targets_by_tokens(found, states),
            "variants": [{"variant": variant.name, "capacity": variant.capacity, "demand": variant.demand,
                          "pending": variant.pending, "per_replica": variant.per_replica, "replicas": variant.ready}
                         for variant in found.variants]}


def _queue(case: Case) -> Row:
    times = BatchTimes(case["alpha_ms"], case["beta_ms"], case["gamma_ms"], case["input"], case["output"])
    model, target = QueueModel(times, case["max_batch"], case["max_queue"]), case["target"]
    analysis = []
    for row in case["expect"]["analysis"]:
        at = model.at(row["rate"])
        analysis.append({"rate": row["rate"], "max_rate": model.most, "in_service": at.in_service, "itl_ms": at.itl,
                         "prefill_ms": at.prefill, "response_ms": at.response, "rho": at.utilization,
                         "throughput": at.throughput, "ttft_ms": at.ttft, "wait_ms": at.wait})
    try:
        sized = model.sized(QueueTarget(target["ttft_ms"], target["itl_ms"], target["tokens_per_s"]))
    except TargetTooTight:
        return {"analysis": analysis, "sizing": {"error": "no rate meets the target"}}
    at = model.at(sized.rate)
    return {"analysis": analysis,
            "sizing": {"rate": at.throughput, "rate_ttft": sized.by_ttft, "rate_itl": sized.by_itl,
                       "rate_tps": sized.by_tokens, "ttft_ms": at.ttft, "itl_ms": at.itl,
                       "tokens_per_s": at.throughput * case["output"]}}

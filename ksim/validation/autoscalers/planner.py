"""Decisions of Dynamo's planners: of 1.6.1 tick by tick, each with the recorded workers, traffic and load, and of 0.9.1
interval by interval."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose, nan
from typing import Any

from attrs import define

from ksim.autoscaling import EngineLimits, Load
from ksim.autoscaling.dynamo_engine import PassModel
from ksim.autoscaling.dynamo_loops import RoleState
from ksim.autoscaling.dynamo_planner import DynamoPlanner, Pipeline, TrafficSeen
from ksim.autoscaling.dynamo_planner_09 import DynamoPlanner09, Interval
from ksim.autoscaling.forecasts import FORECASTS, ForecastSettings
from ksim.foundation.config import structure
from ksim.foundation.errors import MissingExtra
from ksim.validation.autoscalers import Case
from ksim.validation.schedules import Difference

#: How far a recorded number may be off, and a forecast that hangs on versions of libraries and solvers.
_EXACT, _FORECAST = 1e-6, 0.01
Row = Mapping[str, Any]


def _close(predictor: str) -> float:
    """How far, as a share, a forecast may be off."""
    return _FORECAST if predictor in ("arima", "prophet") else _EXACT


@define
class _GivenPasses:
    """The passes of a case, linear in what they hold, in milliseconds; known after so many that were seen."""

    coefficients: Mapping[str, float]
    ready_after: int = 0
    seen: int = 0

    def learn(self, loads: Iterable[Load]) -> None:
        self.seen += sum(1 for _ in loads)

    def seconds(self, prefill_tokens: int, decode_requests: int, decode_kv: int) -> float | None:
        if self.seen < self.ready_after:
            return None
        given = self.coefficients
        return (given.get("base", 0.0) + given.get("prefill_token", 0.0) * prefill_tokens
                + given.get("decode_request", 0.0) * decode_requests
                + given.get("decode_kv_token", 0.0) * decode_kv) / 1000.0


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """Where decisions differ, forecasts, rates, estimates, factors, or the lower bounds of the fast loop."""
    name = case["config"].get("load_predictor", "constant")
    try:  # it may need a library that is not installed
        FORECASTS[name](ForecastSettings())
    except MissingExtra as error:
        yield Difference(None, "load_predictor", name, str(error))
        return
    if "intervals" in case:
        yield from _of_09(case, meta)
        return
    planner = structure(DynamoPlanner, case["config"], case["name"])
    pipeline = _pipeline(planner, case)
    pipeline.lookout.warm([_traffic({"duration_s": 180.0, **row}) for row in case.get("history", ())])
    for index, tick in enumerate(case["ticks"]):
        yield from _of_tick(index, tick, pipeline, planner)


def _pipeline(planner: DynamoPlanner, case: Case) -> Pipeline:
    given, costs = case["capabilities"], []
    limits: dict[str, EngineLimits] = {}
    passes: dict[str, PassModel] = {}
    for role in planner.roles:
        said = given[role]
        costs.append(said.get("gpu_cost_per_replica") or said.get("num_gpu") or 1)
        limits[role] = EngineLimits(said["max_num_batched_tokens"], said["max_num_seqs"], said["max_kv_tokens"],
                                    said["context_length"])
        kind = "aggregated" if planner.mode == "agg" else role
        passes[role] = _GivenPasses(case.get("forward_pass_ms", {}).get(kind, {}),
                                    case.get("model_ready_after", {}).get(kind, 0))
    return planner.pipeline(costs, limits, passes)


def _of_tick(index: int, tick: Row, pipeline: Pipeline, planner: DynamoPlanner) -> Iterator[Difference]:
    traffic = None if tick.get("traffic") is None else _traffic(tick["traffic"])
    due = tick.get("loops", ())
    loads = None
    if "load" in due or (tick.get("load") and not planner.enable_load_scaling):
        loads = {role: [_load(row) for row in rows] for role, rows in (tick.get("load") or {}).items()}
    wanted = pipeline.tick(tick["t"], _states(tick["workers"], planner.roles), traffic, loads)
    expected = tick.get("decision")
    got = None if wanted is None else {role: wanted.get(role) for role in ("prefill", "decode")}
    for key, value, own in _numbers(tick.get("diagnostics", {}), pipeline, planner):
        close = _close(planner.load_predictor) if planner.enable_throughput_scaling else _EXACT
        if own is None or not isclose(value, own, rel_tol=close, abs_tol=1e-9):
            yield Difference(index, key, value, own)
    if got != expected:
        yield Difference(index, "decision", expected, got)


def _numbers(said: Row, pipeline: Pipeline, planner: DynamoPlanner) -> Iterator[tuple[str, float, float | None]]:
    """The recorded numbers of a tick, and ours."""
    loops, forecast = pipeline.loops, pipeline.forecast or (None, None, None)
    last = loops.roles[-1]
    own: dict[str, float | None] = {
        "predicted_num_req": forecast[0], "predicted_isl": forecast[1], "predicted_osl": forecast[2],
        "engine_rps_prefill": loops.rates.get("prefill", loops.rates.get(last)),
        "engine_rps_decode": loops.rates.get("decode"),
        "estimated_ttft_ms": _milli(loops.estimates.get("ttft")),
        "estimated_itl_ms": _milli(loops.estimates.get("itl"))}
    if planner.enable_load_scaling:
        own |= {f"throughput_lower_bound_{role}": loops.bounds[role] for role in loops.roles}
    for key, value in own.items():
        if key in said:
            yield key, said[key], value


def _milli(value: float | None) -> float | None:
    return None if value is None else 1000.0 * value


def _states(workers: Row, roles: Sequence[str]) -> dict[str, RoleState]:
    return {role: RoleState(workers.get(f"ready_num_{role}", 0), workers.get(f"expected_num_{role}"),
                            workers.get(f"{role}_scaling_in_progress", False), workers.get(f"pending_num_{role}", 0))
            for role in roles}


def _traffic(row: Row) -> TrafficSeen:
    def number(key: str) -> float:
        value = row.get(key)
        return nan if value is None or value == "nan" else float(value)

    return TrafficSeen(row["duration_s"], number("num_req"), number("isl"), number("osl"), row.get("kv_hit_rate"),
                       row.get("accept_length"))


def _load(row: Row) -> Load:
    return Load(**{key: value for key, value in row.items() if key != "wall_s"}, wall=row.get("wall_s", 0.02))


def _of_09(case: Case, meta: Case) -> Iterator[Difference]:
    config = {"load_predictor": "constant", "profile": meta["profile"], **case["config"]}
    planner = structure(DynamoPlanner09, config, case["name"])
    for index, row in enumerate(case["intervals"]):
        yield from _of_interval(index, row, planner)


def _of_interval(index: int, row: Row, planner: DynamoPlanner09) -> Iterator[Difference]:
    seen = Interval(*(nan if row[key] is None else float(row[key])
                      for key in ("num_req", "isl", "osl", "ttft_s", "itl_s", "duration_s")))
    wanted = planner.adjust(seen, row["replicas"][1])
    for key, value in zip(("prefill_correction", "decode_correction"), planner.factors, strict=True):
        if not isclose(row[key], value, rel_tol=1e-6):
            yield Difference(index, key, row[key], value)
    for key, value in (row["predicted"] or {}).items():
        own = None if planner.expected is None else planner.expected[("num_req", "isl", "osl").index(key)]
        if own is None or not isclose(value, own, rel_tol=_close(planner.load_predictor), abs_tol=1e-9):
            yield Difference(index, key, value, own)
    if row["decision"] != (None if wanted is None else [*wanted]):
        yield Difference(index, "decision", row["decision"], wanted)

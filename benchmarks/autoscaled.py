"""Public runs of fleets that autoscalers scaled, beside their simulation; nothing is set in view of them.

`RUNS` has what was published: settings, loads, pods' start-ups and results.  What a source does not say is in
docs/evidence/accuracy.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isnan, nan
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from benchmarks.findings import Findings, Sheet
from ksim.cluster.replicas import READY
from ksim.flow.events import EngineBuilt, Rejected
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from ksim.views.result import Result

#: Most replicas may be off by this, in per cent.
GOAL = 20.0
COLUMNS = ("run", "replicas, mean", "most", "TTFT, s", "ITL, ms", "errors")


@frozen
class Outcome:
    """What a run comes to: replicas that were ready, on the mean and at most, seconds to the first token, milliseconds
    from one token to the next, and requests that failed; nan is not stated."""

    replicas: float
    most: float
    ttft: float = nan
    itl: float = nan
    errors: float = nan


@frozen(eq=False)
class FleetRun:
    """A run that was `measured`, and the tables of its scenario; it is one of a `group` with the same load.

    `ttft` and `itl` are the statistics of which it has figures.  Clients hang up after `timeout` seconds, and what came
    after `end` does not count.
    """

    name: str
    group: str
    measured: Outcome
    table: Mapping[str, Any]
    ttft: str = "p99"
    itl: str = "p99_tpot"
    timeout: float = field(default=inf, kw_only=True)
    end: float = field(default=inf, kw_only=True)


# What the sources share.

def rates(policy: tuple[str, int, int], window: int) -> dict[str, Any]:
    """One direction of an HPA's behavior: a policy's type, value and period, and the stabilization window."""
    kind, value, period = policy
    return {"stabilizationWindowSeconds": window,
            "policies": [{"type": kind, "value": value, "periodSeconds": period}]}


def behavior(up: tuple[str, int, int], down: tuple[str, int, int], down_window: int, up_window: int = 0,
             ) -> dict[str, Any]:
    return {"scaleUp": rates(up, up_window), "scaleDown": rates(down, down_window)}


def keda(most: int, rules: Mapping[str, Any] | None, **triggers: float) -> dict[str, Any]:
    """A ScaledObject that polls every 15 s, with the metrics of *triggers* and their thresholds."""
    advanced = {"horizontalPodAutoscalerConfig": {"behavior": rules}} if rules else {}
    return {"name": "keda", "pollingInterval": 15, "minReplicaCount": 1, "maxReplicaCount": most, "advanced": advanced,
            "triggers": [{"type": "prometheus", "metadata": {"query": f"sum({name})", "threshold": threshold}}
                         for name, threshold in triggers.items()]}


def table(model: str, scaler: Mapping[str, Any], startup: float, workload: Mapping[str, Any], serve: Mapping[str, Any],
          **more: Any) -> dict[str, Any]:
    """A pool of one-GPU replicas on H100 behind llm-d's endpoint picker, one of them ready at the start."""
    weights = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}
    most = scaler.get("maxReplicaCount") or scaler.get("maxReplicas") or 1
    return {"model": model, "gpu": "h100", "nodes": 2, "host": "api-server", "engine": "vllm-0.19",
            "serve": {"block_size": 64, "enforce_eager": True, **serve}, "flow_control": "queue_limit",
            "router": {"name": "llm_d", "scorers": weights},
            "startup": {"name": "default", "mode": "measured", "ready": f"{startup} s"},
            "pools": {"decode": {"role": "both", "replicas": 1, "max_replicas": most, "autoscaler": dict(scaler)}},
            "workload": workload, **more}


def load(phases: Sequence[tuple[float, float]], prompt: tuple[float, float], output: tuple[float, float],
         process: str = "poisson", **more: Any) -> dict[str, Any]:
    """Requests/s, each for so many seconds; prompts and outputs by their means and deviations in tokens."""
    def length(mean: float, deviation: float) -> dict[str, Any]:
        if not deviation:
            return {"kind": "fixed", "value": mean}
        return {"kind": "lognormal", "mean": mean, "sigma": deviation / mean}
    return {"synthetic": {"arrivals": {"process": process, "phases": [{"rate": rate, "for": f"{seconds} s"}
                                                                     for rate, seconds in phases]},
                          "prompt": length(*prompt), "output": length(*output), **more}}


# Llama 3.1 8B: WVA beside KEDA (biranofer/workload-variant-autoscaler, comparison-*, July 2026).

_STEPS = behavior(("Percent", 100, 15), ("Percent", 100, 15), 120)
#: Prompt and output, rates of five minutes each, WVA's scaleUpThreshold; WVA, KEDA: start-up and what was measured.
_STEPPED = (
    (4000, 1000, (2, 4, 6, 8), 0.85, (94, Outcome(3.41, 10, 74.38, errors=73)),
     (98, Outcome(4.12, 8, 4.19, errors=33))),
    (2800, 700, (4, 6, 8, 10), 0.75, (80, Outcome(2.43, 8, 19.86, errors=52)),
     (92, Outcome(3.98, 7, 3.00, errors=23))),
    (1000, 250, (4, 6, 8, 10), 0.75, (65, Outcome(1.00, 1, 0.10, errors=1)), (95, Outcome(1.70, 2, 0.09, errors=0))),
    (1000, 250, (10, 12, 14, 16), 0.75, (99, Outcome(1.00, 1, 0.17, errors=0)),
     (95, Outcome(2.46, 4, 0.13, errors=21))),
)


def stepped() -> Iterator[FleetRun]:
    for prompt, output, steps, threshold, *legs in _STEPPED:
        group = f"Llama 3.1 8B, {prompt}/{output} at {' '.join(map(str, steps))}"
        workload = load([(rate, 300) for rate in steps], (prompt, 0.05 * prompt), (output, 0.1 * output))
        wva = {"name": "wva", "analyzerName": "saturation", "scaleUpThreshold": threshold, "maxReplicas": 10,
               "behavior": _STEPS}
        ways = {"WVA": wva, "KEDA": keda(10, _STEPS, inference_extension_flow_control_queue_size=50,
                                         inference_objective_running_requests=16)}
        for (name, scaler), (startup, measured) in zip(ways.items(), legs, strict=True):
            serve = {"max_model_len": 8192, "gpu_memory_utilization": 0.85}
            yield FleetRun(name, group, measured, table("llama-3.1-8b", scaler, startup, workload, serve))


# Qwen3-32B and 0.6B: docs/benchmark.md of llm-d/llm-d-workload-variant-autoscaler (May to July 2026; PR 1118 and 1230).

_QWEN = {"max_model_len": 16000, "gpu_memory_utilization": 0.95}
_WVA_1 = {"name": "wva", "maxReplicas": 10, "behavior": behavior(("Pods", 10, 150), ("Pods", 10, 150), 240)}
_BURSTS = ((15, 180), (2, 120), (10, 180), (15, 180), (5, 120), (2, 120))
_SLOW = behavior(("Pods", 1, 180), ("Pods", 1, 300), 300)
_POOL = {"inference_pool_average_kv_cache_utilization": 0.7, "inference_pool_average_queue_size": 2}
#: Prompt and output; start-up and what was measured with WVA, an HPA, KEDA.
_LOADED = (
    (4000, 1000, (110, Outcome(1.73, 3, 98.42, 54.8, 4184)), (130, Outcome(2.30, 4, 555.5, 59.1, 0)),
     (104, Outcome(7.42, 10, 506.9, 58.7, 0))),
    (1000, 4000, (109, Outcome(1.84, 3, 78.05, 47.1, 3563)), (128, Outcome(2.21, 4, 356.9, 113.3, 0)),
     (102, Outcome(8.22, 10, 408.2, 106.9, 0))),
    (1000, 1000, (103, Outcome(1.70, 3, 100.2, 67.3, 3729)), (125, Outcome(2.32, 4, 518.3, 70.5, 0)),
     (108, Outcome(7.45, 10, 494.8, 65.4, 0))),
)


def bursty() -> Iterator[FleetRun]:
    workload = load(_BURSTS, (1000, 200), (1000, 200), "constant")
    for model, label, startup, measured in (
            ("qwen3-32b", "Qwen3-32B", 103, Outcome(2.43, 4, 262.4, 196.3, 6110)),
            ("qwen3-0.6b", "Qwen3-0.6B", 66, Outcome(1.99, 3, 13.38, 48.0, 51))):
        yield FleetRun("WVA", f"{label}, bursts of 1000/1000", measured, table(model, _WVA_1, startup, workload, _QWEN),
                       itl="p99_itl", timeout=300.0)


def loaded() -> Iterator[FleetRun]:
    """Ten minutes at 20 requests/s, of which at most 512 are under way."""
    hpa: dict[str, Any] = {"name": "hpa", "minReplicas": 1, "maxReplicas": 10, "behavior": _SLOW, "metrics": [
        {"type": "External", "external": {"metric": {"name": name}, "target": {
            "type": "Value" if name.endswith("utilization") else "AverageValue",
            **({"value": target} if name.endswith("utilization") else {"averageValue": target})}}}
        for name, target in _POOL.items()]}
    for prompt, output, *legs in _LOADED:
        # Without flow control nothing is refused, and those that come later are never sent.
        ways: dict[str, tuple[dict[str, Any], str, int]] = {
            "WVA": (_WVA_1, "queue_limit", 600), "HPA": (hpa, "none", 60),
            "KEDA": (keda(10, _SLOW, **_POOL), "none", 60)}
        group = f"Qwen3-32B, {prompt}/{output} at 20"
        for (name, (scaler, control, seconds)), (startup, measured) in zip(ways.items(), legs, strict=True):
            workload = {**load([(20, seconds)], (prompt, 0), (output, 0)), "max_concurrency": 512}
            run = FleetRun(name, group, measured, table("qwen3-32b", scaler, startup, workload, _QWEN,
                                                        flow_control=control), end=600.0)
            yield run
        # Its ten replicas could not be there by then at the pace that is stated.
        quick = table("qwen3-32b", keda(10, None, **_POOL), startup, workload, _QWEN, flow_control="none")
        yield evolve(run, name="KEDA at Kubernetes' own pace", group=f"{group}, otherwise", table=quick)


# Qwen3-32B and 14B with fast model actuation: llm-d/llm-d PR 2459, guides/fast-model-actuation-keda (September 2026).

_FAST = behavior(("Pods", 1, 30), ("Pods", 1, 300), 300)
_TRIGGERS: Mapping[str, Mapping[str, float]] = {
    "saturation": {"llm_d_epp_flow_control_pool_saturation": 0.7, "llm_d_epp_request_running": 16},
    "queue": {"llm_d_epp_flow_control_queue_size": 1, "llm_d_epp_request_running": 16}}
#: Model, trigger; start-ups and what was measured cold, warm and hot.
_ACTUATED = (
    ("32b", "saturation", (155, Outcome(3.94, 6, 67.9, 26.6, 63)), (85.7, Outcome(3.76, 5.3, 55.4, 27.5, 19)),
     (4, Outcome(2.52, 3, 13.4, 30.3, 0))),
    ("32b", "queue", (149, Outcome(3.87, 6, 74.2, 27.9, 80)), (85.3, Outcome(4.04, 6, 61.2, 26.9, 36)),
     (4, Outcome(3.27, 4.7, 24.1, 28.1, 0))),
    ("14b", "queue", (124.7, Outcome(4.95, 6, 51.9, 49.4, 752)), (71, Outcome(5.14, 6, 1.56, 26.0, 0)),
     (3.3, Outcome(5.22, 6, 1.50, 25.9, 0))),
)


def actuated() -> Iterator[FleetRun]:
    weights = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0,
               "no-hit-lru-scorer": 2.0}
    for size, trigger, *legs in _ACTUATED:
        slow, fast, output, groups = (0.5, 2, 256, 32) if size == "32b" else (2, 12, 1000, 128)
        workload = load([(slow, 120), (fast, 900)], (256, 0), (output, 0), "constant",
                        prefixes={"groups": groups, "tokens": 4000})
        for name, (startup, measured) in zip(("cold", "warm", "hot"), legs, strict=True):
            yield FleetRun(name, f"Qwen3-{size.upper()}, KEDA by {trigger}", measured, table(
                f"qwen3-{size}", keda(6, _FAST, **_TRIGGERS[trigger]), startup, workload,
                {**_QWEN, "enforce_eager": False}, router={"name": "llm_d", "scorers": weights}), "p95", "mean_itl")


RUNS: Sequence[FleetRun] = (*stepped(), *bursty(), *loaded(), *actuated())


# Their simulation.

def simulated(run: FleetRun) -> Outcome:
    """What ksim says of *run*."""
    fleet = Fleet.of(Scenario.of(run.table))
    synthetic = fleet.scenario.workload.synthetic
    assert synthetic is not None, "all loads are drawn at random"
    requests = synthetic.requests(fleet.scenario.seed)
    if run.timeout < inf:
        fleet, requests = fleet.stepping(), (evolve(request, aborted=run.timeout) for request in requests)
    return outcome(run, play(fleet, requests))


def outcome(run: FleetRun, result: Result) -> Outcome:
    """The figures of *result* of which *run* has measurements."""
    summary = result.summary
    end = min(run.end, summary["duration"])
    mean, most = ready(result.log.engines, end)
    if run.end == inf:
        return Outcome(mean, most, summary[f"{run.ttft}_ttft_ms"] / 1000.0, summary[f"{run.itl}_ms"], summary["failed"])
    columns = {name: result.requests[name].to_numpy(zero_copy_only=False)
               for name in ("arrival_s", "e2e_s", "ttft_s", "tpot_s", "status")}
    through = (columns["status"] == "completed") & (columns["arrival_s"] + columns["e2e_s"] <= end)
    ttft, tpot = (float(np.quantile(columns[name][through], 0.99)) for name in ("ttft_s", "tpot_s"))
    return Outcome(mean, most, ttft, 1000.0 * tpot, sum(refused.time <= end for refused in result.log.of(Rejected)))


def ready(engines: Sequence[EngineBuilt], end: float) -> tuple[float, int]:
    """How many of *engines* are ready until *end*, on the mean and at most."""
    changes = sorted((min(moment, end), step) for engine in engines for (begin, state), until in zip(
        engine.life, [*(moment for moment, _ in engine.life[1:]), inf], strict=True) if state == READY and begin < end
        for moment, step in ((begin, 1), (until, -1)))
    now, most, seconds = 0, 0, 0.0
    for (moment, step), (following, _) in zip(changes, [*changes[1:], (end, 0)], strict=True):
        now += step
        most = max(most, now)
        seconds += now * (following - moment)
    return seconds / end, most


# What is shown.

def error(found: float, measured: float) -> float:
    """The signed error in per cent; nan where nothing was measured, or nothing but 0."""
    return 100.0 * (found / measured - 1.0) if measured else nan


def compared(found: float, measured: float, goal: float = inf) -> str:
    """What was measured, what is simulated, and the error; bold beyond its *goal*."""
    if isnan(measured):
        return "-"
    off = error(found, measured)
    said = "" if isnan(off) else f", **{off:+.0f} %**" if abs(off) > goal else f", {off:+.0f} %"
    return f"{figure(measured, 4)}, {figure(found, 3)}{said}"


def figure(value: float, digits: int) -> str:
    """*value* with so many *digits*."""
    return f"{float(f'{value:.{digits}g}'):,g}"


def row(run: FleetRun, found: Outcome) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    return (f"{run.group}: {run.name}", compared(found.replicas, run.measured.replicas, GOAL),
            compared(found.most, run.measured.most, GOAL), compared(found.ttft, run.measured.ttft),
            compared(found.itl, run.measured.itl), compared(found.errors, run.measured.errors))


def orders(outcomes: Mapping[FleetRun, Outcome]) -> Iterator[tuple[str, ...]]:
    """Of each group, the runs from the fewest replicas to the most, as measured and as simulated."""
    for group in dict.fromkeys(run.group for run in outcomes):
        runs = [run for run in outcomes if run.group == group]
        if len(runs) > 1:
            measured = sorted(runs, key=lambda run: run.measured.replicas)
            found = sorted(runs, key=lambda run: outcomes[run].replicas)
            yield group, *(" < ".join(run.name for run in order) for order in (measured, found))


def findings(runs: Sequence[FleetRun] = RUNS) -> Findings:
    """Each run beside its simulation, and the orders of autoscalers."""
    outcomes = {run: simulated(run) for run in runs}
    rows = [row(run, found) for run, found in outcomes.items()]
    return Findings([Sheet("Measured, simulated, error", COLUMNS, rows),
                     Sheet("Fewest replicas first", ("load", "measured", "simulated"), list(orders(outcomes)))], [])

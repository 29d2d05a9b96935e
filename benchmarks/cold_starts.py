"""How an SLA depends on engines' start-up under Dynamo's planner, as DynoSim's guide to its benchmarks asks.

The guide (docs/dynosim/planner-benchmarking.md, 2026) replays Mooncake's tool and agent trace, which is not here: this
is its trace of conversations of the same hour, whose prompts are a third longer, and half as many.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.findings import Findings, Sheet
from ksim.flow.events import Scaled
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate

TRACE = Path(__file__).parents[2] / "shared/data/traces/mooncake_fast25/conversation_trace.jsonl"
#: Seconds of the trace that are played, of start-ups, and the targets in milliseconds.
WINDOW, STARTUPS, TTFT, ITL = 900, (0, 60, 120, 240), 1500, 50


def table(startup: float, trace: Path = TRACE, window: float = WINDOW) -> dict[str, Any]:
    """The guide's aggregated engines, two at the start and as many as the planner's budget has GPUs."""
    planner = {"name": "dynamo_planner", "mode": "agg", "optimization_target": "sla", "ttft_ms": TTFT, "itl_ms": ITL,
               "enable_load_scaling": True, "throughput_adjustment_interval_seconds": 300,
               "load_adjustment_interval_seconds": 10, "load_predictor": "constant"}
    return {"model": "llama-3.1-8b", "gpu": "h200", "engine": "vllm-0.22", "router": "round_robin",
            "serve": {"quantization": "fp8"},
            "startup": {"name": "default", "mode": "measured", "ready": f"{startup} s"},
            "slo": {"ttft": f"{TTFT} ms", "tpot": f"{ITL} ms"},
            "pools": {"agg": {"role": "both", "replicas": 2, "max_replicas": 8, "autoscaler": planner}},
            "workload": {"replay": {"path": str(trace), "end": f"{window} s"}}}


def row(startup: float, *where: Any) -> tuple[str, ...]:
    """The figures of a start-up."""
    result = simulate(Scenario.of(table(startup, *where)))
    columns = {name: result.requests[name].to_numpy(zero_copy_only=False) for name in ("ttft_s", "tpot_s")}
    met = (columns["ttft_s"] <= TTFT / 1000) & ~(columns["tpot_s"] > ITL / 1000)
    summary = result.summary
    return (f"{startup:g}", f"{100 * met.mean():.1f}", f"{len([*result.log.of(Scaled)])}",
            f"{summary['p99_ttft_ms'] / 1000:.1f}", f"{summary['mean_itl_ms']:.1f}", f"{summary['p90_itl_ms']:.1f}",
            f"{summary['mean_gpus']:.2f}")


def findings(startups: Sequence[float] = STARTUPS, *where: Any) -> Findings:
    """A row for each start-up."""
    columns = ("start-up, s", "SLA met, %", "scaling events", "TTFT p99, s", "ITL, ms", "ITL p90, ms", "GPUs, mean")
    return Findings([Sheet("Start-ups", columns, [row(startup, *where) for startup in startups])], [])

"""Directories of studies that nobody ran: numbers by formula, in the format that studies write."""

import json
from collections.abc import Iterator
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

from ksim.study.directory import StudyDirectory
from ksim.study.rows import FAILED, OK, RunRow

SCENARIO = 'model = "llama-3.1-8b"\ngpu = "h200"\n'
#: A name that would run if a page took it for markup.
EVIL = "</script><img src=x onerror=alert(1)>"


def numbers(tensor: int, sequences: int, replication: int) -> dict[str, Any]:
    """What a run could say: more GPUs are faster and dearer, larger batches slower and cheaper."""
    noise = 1 + 0.02 * (replication - 1)
    rate = min(10.0, 2.2 * tensor ** 0.9 * sequences ** 0.5)
    latency = 40 * noise * (1 + sequences / 64) / tensor ** 0.7
    return {"duration": 100.0, "gpus": tensor, "request_throughput": rate, "request_goodput": rate * 0.9,
            "output_throughput": 210 * rate, "median_ttft_ms": latency, "p99_ttft_ms": 3.1 * latency,
            "median_tpot_ms": 6 + 0.1 * sequences / tensor, "p99_e2el_ms": 40 * latency,
            "joules_per_output_token": 0.3 * tensor / rate, "usd_per_million_tokens": 0.4 * noise * tensor / rate,
            "slo_attainment": 1 - exp(-200 / latency), "saturated": rate < 4, "kv_cache_usage_peak": None}


def row(place: int, replication: int, settings: dict[str, Any]) -> RunRow:
    changes = "".join(f"# {key} = {value}\n" for key, value in settings.items())
    if settings["serve.tensor_parallel_size"] == 8:
        return RunRow(place, replication, replication, settings, FAILED, "tensor_parallel_size 8: the node has 4 GPUs")
    found = numbers(settings["serve.tensor_parallel_size"], settings["serve.max_num_seqs"], replication)
    return RunRow(place, replication, replication, settings, OK, numbers=found, scenario=SCENARIO + changes)


def sweep(path: Path, name: str = "fcfs", repeat: int = 3) -> Path:
    """A sweep of three settings; one of their names is *name*."""
    grid = product((1, 2, 4, 8), (8, 32, 128), (name, "slo_aware"))
    axes = ("serve.tensor_parallel_size", "serve.max_num_seqs", "serve.scheduling_policy")
    command = {"over": [f"{axis}=..." for axis in axes], "repeat": repeat, "seed": 0}
    with StudyDirectory.create(path, "sweep", "Sweep of quickstart", command, SCENARIO) as study:
        for place, values in enumerate(grid, 1):
            for replication in range(repeat):
                study.add(row(place, replication, dict(zip(axes, values, strict=True))))
        study.finish()
    return path


def tune(path: Path, trials: int = 40) -> Path:
    """A search for the cheapest point under a bound."""
    command = {"objectives": ["usd_per_million_tokens"], "require": ["p99_ttft_ms<200"], "seed": 0}
    with StudyDirectory.create(path, "tune", "Tuning quickstart", command, SCENARIO) as study:
        for place in range(1, trials + 1):
            settings = {"serve.tensor_parallel_size": (1, 2, 4)[place * 7 % 3],
                        "serve.max_num_seqs": 8 + place * 37 % 120, "power.cap": f"{400 + place * 53 % 300} W"}
            study.add(row(place, 0, settings))
        study.finish()
    (path / "best.toml").write_text(SCENARIO, encoding="utf-8")
    return path


def _point(rate: float, highest: float) -> dict[str, Any]:
    share = 1 / (1 + exp((rate - 1.6 * highest) / (0.13 * highest)))
    half = 0.002 + 0.05 * min(1.0, rate / highest) * share * (1 - share) * 4
    seconds = {"value": 0.9 * rate / highest, "interval": [0.8 * rate / highest, None]}
    attainment: dict[str, Any] = {"value": share, "interval": [share - half, min(1.0, share + half)]}
    return {"rate": rate, "replications": 8 if rate > 0.6 * highest else 1,
            "hopeless": int(rate > 1.2 * highest), "saturated": 0,
            "meets": rate <= highest, "numbers": {"usd_per_million_tokens": 0.3},
            "goodput": {"value": rate * share, "interval": [rate * end for end in attainment["interval"]]},
            "targets": {"ttft:p99:1s": {"attainment": attainment, "seconds": seconds}}}


def _set_up(name: str, gpus: int, replicas: int, highest: float) -> dict[str, Any]:
    rates = [highest * share for share in (0.25, 0.5, 0.8, 0.95, 1.0, 1.05, 1.3)]
    answer = {"rate": highest, "interval": [0.93 * highest, 1.06 * highest],
              "traffic": [0.98 * highest, 1.02 * highest], "model": [0.94 * highest, 1.05 * highest],
              "model_share": 0.9, "binds": "ttft:p99:1s"}
    return {"name": name, "settings": {"serve.tensor_parallel_size": gpus}, "stands": True, "problem": "",
            "replicas": replicas, "gpus": gpus * replicas, "gpus_interval": [gpus * replicas - 1, gpus * replicas + 2],
            "gpus_per_replica": gpus, "usd_per_million_tokens": 0.31, "joules_per_million_tokens": 0.5e6 / gpus,
            "binds": "ttft:p99:1s", "point": _point(10.0, highest), "highest_rate": answer, "light": None,
            "points": [_point(rate, highest) for rate in rates]}


def set_ups() -> Iterator[dict[str, Any]]:
    yield _set_up("TP4", 4, 3, 11.2)
    yield _set_up(f"TP2 {EVIL}", 2, 7, 10.3)
    refused = dict.fromkeys(("replicas", "gpus", "gpus_interval", "gpus_per_replica", "usd_per_million_tokens",
                             "joules_per_million_tokens", "binds", "point", "highest_rate", "light",
                             "points"))
    yield {"name": "TP1", "settings": {}, "stands": False, "problem": "the weights do not fit", **refused}


def capacity(path: Path) -> Path:
    """The answer to a question of capacity."""
    sentence = "12 GPUs (3 replicas of TP4); 95 %: 11 to 14; of the width 9/10 is the model's error, the rest traffic"
    content = {"sentence": sentence, "scenario": "Capacity of quickstart", "rate": 10.0, "targets": ["ttft:p99:1s"],
               "confidence": 0.95, "seed": 0, "requests": 1000, "model_errors": True, "runs": 88,
               "notes": ["the trace is resampled in blocks of 32 requests"], "best": "TP4", "set_ups": [*set_ups()]}
    with StudyDirectory.create(path, "capacity", "Capacity of quickstart", {"slo": ["ttft:p99:1s"], "rate": 10.0},
                               SCENARIO) as study:
        study.finish()
    (path / "capacity.json").write_text(json.dumps(content), encoding="utf-8")
    (path / "best.toml").write_text(SCENARIO, encoding="utf-8")
    return path


def routers(path: Path) -> Path:
    """A comparison of routers, of which one cannot run, with fresh and with old signals."""
    waits = {"omniscient": 0.0, "llm_d": 20.0, EVIL: 45.0, "round_robin": 90.0}
    grid = [(name, age) for name in waits for age in ((0, "200ms") if name in ("llm_d", EVIL) else (0,))]
    with StudyDirectory.create(path, "routers", "Routers of a fleet", {"repeat": 2}, SCENARIO) as study:
        for place, (name, age) in enumerate(grid, 1):
            for replication in range(2):
                settings = {"router": name, "signals.scrape_interval": age}
                regret = waits[name] * (1 + replication / 9) * (1.5 if age else 1)
                found = numbers(1, 32, replication) | {
                    "mean_latency_regret_ms": regret, "mean_regret_ms": regret and 50 - regret,
                    "p99_regret_ms": 4 * regret, "p90_ttft_ms": 80 + regret, "failed": 0,
                    "prefix_cache_hit_rate": 0.9 - regret / 200, "engine_tokens_cv": regret / 100}
                study.add(RunRow(place, replication, replication, settings, OK, numbers=found, scenario=SCENARIO))
        settings = {"router": {"name": "mooncake", "load": 2}, "signals.scrape_interval": 0}
        problem = "signals.metrics: is false, and router mooncake needs them"
        study.add(RunRow(place + 1, 0, 0, settings, FAILED, problem))
        study.finish()
    return path

"""Run one workload in a process of its own and print what it took, as one line of JSON."""

import json
import sys
import tempfile
import time
from pathlib import Path


def peak_megabytes() -> float:
    """The most memory this process has held, in 10^6 bytes; NaN where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def measure(name: str) -> dict[str, float]:
    """Simulate and write workload *name*; seconds are CPU time of this process."""
    from benchmarks.workloads import scenarios
    from ksim.studies.scenario import Scenario
    from ksim.studies.simulation import simulate

    scenario = Scenario.of(scenarios()[name], name)
    begin = time.process_time()
    result = simulate(scenario)
    simulated = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder) / "run", plots=False)
    summary = result.summary
    return {
        "requests": summary["completed"], "steps": summary["steps"], "tokens": summary["total_output_tokens"],
        "simulation": simulated - begin, "program": time.process_time(), "megabytes": peak_megabytes(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))

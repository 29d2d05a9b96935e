"""Run one workload in a process of its own and print what it took, as one line of JSON."""

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.apart import Figures, peak_megabytes
from ksim.foundation import process


@process.alone()
def measure(name: str) -> Figures:
    """Simulate and write workload *name*, as `ksim run` does; seconds are CPU time of this process."""
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

"""Simulate one workload in a process of its own and print what it took, as one line of JSON."""

import json
import sys
import time

from benchmarks.apart import Figures
from ksim.foundation import process


@process.dedicated()
def measure(name: str) -> Figures:
    """Simulate workload *name*; seconds are CPU time of this process, without what it loads before."""
    from benchmarks.workloads import fleets, scenarios
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.simulate import simulate

    scenario = Scenario.of({**scenarios(), **fleets()}[name], name)
    begin = time.process_time()
    result = simulate(scenario)
    simulated = time.process_time()
    summary = result.summary
    return {
        "requests": summary["completed"], "steps": summary["steps"], "tokens": summary["total_output_tokens"],
        "simulation": simulated - begin,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))

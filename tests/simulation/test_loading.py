"""What a run loads: libraries that it has no use for take longer than the run."""

import subprocess
import sys

RUN = """
import sys
from pathlib import Path

from ksim.cli.keep import Kept, run_and_keep
from ksim.scenario.scenario import Scenario

fixed = {"kind": "fixed", "value": 20}
load = {"count": 4, "arrivals": {"process": "poisson", "rate": 8.0}, "prompt": fixed, "output": fixed}
scenario = Scenario.of({"model": "llama-3.1-8b", "gpu": "h200", "workload": {"synthetic": load}}, "a run")
run_and_keep(scenario, Kept(Path(sys.argv[1]), plots=False, trace=True, window=None), quiet=True, jobs=1)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_quiet_run_without_plots_loads_little(tmp_path):
    command = [sys.executable, "-c", RUN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {"matplotlib", "pandas", "networkx", "scipy", "sklearn", "hypothesis", "multiprocessing"}.isdisjoint(
        done.stdout.split())

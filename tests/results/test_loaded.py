"""A run loads what counts features, and what shows them, only where it has some or is asked to."""

import subprocess
import sys

PROGRAM = """
import sys
from ksim import Scenario, simulate

result = simulate(Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "workload": {"synthetic": {
    "count": 2, "arrivals": {"process": "constant", "rate": 9.0}, "prompt": {"kind": "fixed", "value": 20},
    "output": {"kind": "fixed", "value": 3}}}}))
assert result.summary["completed"] == 2
print(*(name for name in sys.modules if name.startswith(("ksim.results", "ksim.views"))))
"""


def test_the_numbers_of_a_plain_run_load_neither_features_nor_views():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = {*run.stdout.split()}
    assert "ksim.results.metrics" in loaded
    assert not loaded & {f"ksim.results.{name}" for name in ("attribution", "features", "pools", "streaming")}
    assert not loaded & {f"ksim.views.{name}" for name in ("insights", "tables", "text", "charts", "run_directory")}

"""The scenarios of docs/scenario.md run, and show every kind of workload."""

import tomllib

import pytest

from benchmarks.reference import EXAMPLES
from ksim.foundation.config import kinds_of
from ksim.foundation.keys import keys
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.workload.arrivals import Arrivals
from ksim.workload.distributions import Lengths
from ksim.workload.replay import Replay, Workload
from ksim.workload.synthetic import Synthetic

PATHS = sorted(EXAMPLES.glob("*.toml"))
LOADS = [tomllib.loads(path.read_text(encoding="utf-8"))["workload"] for path in PATHS]
DRAWN = [load["synthetic"] for load in LOADS if "synthetic" in load]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_an_example_of_the_page_runs(path):
    summary = simulate(Scenario.read(path)).summary
    assert summary["completed"] >= 30 and summary["failed"] == summary["unfinished"] == 0


def test_every_kind_of_arrivals_and_lengths_is_shown():
    (process,) = (key for key in keys(Arrivals) if key.name == "process")
    assert {load["arrivals"].get("process", process.default) for load in DRAWN} == {*process.choices}
    assert {load["prompt"]["kind"] for load in DRAWN} == {*kinds_of(Lengths)}


@pytest.mark.parametrize(("cls", "loads", "left_out"), [
    (Workload, LOADS, set()), (Synthetic, DRAWN, {"chunk_tokens"}),
    (Replay, [load["replay"] for load in LOADS if "replay" in load],
     {"time_scale", "spread", "max_prompt", "chunk_tokens", "sort"}),
])
def test_every_key_but_the_plainest_is_shown(cls, loads, left_out):
    shown = {name for load in loads for name in load}
    assert {key.name for key in keys(cls)} - shown <= left_out, "add a file to scenarios/workloads"

"""Scenarios from tables that Python code makes."""

import os
from pathlib import Path

import numpy as np
import pytest

from ksim import KsimError, Scenario, simulate

FIXED = {"kind": "fixed", "value": 40}
SMALL = {"model": "llama-3.2-1b", "gpu": "h200", "workload": {"synthetic": {
    "count": 4, "arrivals": {"process": "burst"}, "prompt": FIXED, "output": {"kind": "fixed", "value": 3}}}}
CONFIG = Path(__file__).parents[2] / "ksim" / "data" / "models" / "llama-3.2-1b.json"


def test_a_table_is_a_scenario_that_runs():
    assert simulate(Scenario.of(SMALL)).summary["completed"] == 4


def test_the_table_stays_as_it_was_and_the_scenario_too():
    table = {**SMALL, "serve": {"scheduling_policy": {"name": "stall_free", "budget": 64}}}
    scenario = Scenario.of(table)
    text = scenario.to_toml()
    table["serve"]["scheduling_policy"]["budget"] = 1
    assert scenario.to_toml() == text and "budget = 64" in text


@pytest.mark.parametrize(("key", "given", "meant"), [
    ("serve.max_num_seqs", np.int64(8), 8),
    ("serve.watermark", np.float32(0.5), 0.5),
    ("serve.enforce_eager", np.bool_(True), True),
    ("serve.cudagraph_capture_sizes", np.array([1, 2, 4]), [1, 2, 4]),
    ("serve.scheduling_policy", {"name": "stall_free", "budget": np.int64(64)}, {"name": "stall_free", "budget": 64}),
    ("slo.ttft", np.str_("200 ms"), "200 ms"),
    ("collectives", ("ring", "nvls"), ["ring", "nvls"]),
    ("model", CONFIG, str(CONFIG)),
])
def test_numpy_numbers_tuples_and_paths_are_accepted(key, given, meant):
    scenario = Scenario.of(SMALL)
    assert scenario.with_values({key: given}) == scenario.with_values({key: meant})
    assert scenario.with_values({key: given}).to_toml() == scenario.with_values({key: meant}).to_toml()


def test_a_path_may_be_a_path_and_is_relative_to_the_folder(tmp_path):
    scenario = Scenario.of({**SMALL, "workload": {"replay": {"path": Path("trace.csv")}}}, folder=tmp_path)
    assert scenario.workload.replay.path == Path(os.path.realpath(tmp_path)) / "trace.csv"


@pytest.mark.parametrize(("table", "says"), [
    ([], "expected a table"), ("scenario.toml", "Scenario.read reads a file"), (None, "expected a table"),
    ({}, "scenario: model, workload: are missing"), ({1: 2}, "scenario: keys are texts, not 1"),
    ({**SMALL, "serve": {None: 1}}, "scenario: serve: keys are texts, not None"),
    ({**SMALL, "serve": 4}, "serve: expected a table with tensor_parallel_size"),
    ({**SMALL, "serve": {"max_num_seqs": object}}, "serve.max_num_seqs: expected a whole number"),
    ({**SMALL, "workload": None}, "workload: expected a table with replay"),
    ({**SMALL, "gpu": b"h200"}, "gpu: expected a name, or a table with a name and its options"),
    ({**SMALL, "router": {"options": 1}}, "router: expected a name, or a table"),
])
def test_a_table_that_is_no_scenario_is_one_clear_error(table, says):
    with pytest.raises(KsimError) as error:
        Scenario.of(table)
    assert says in str(error.value) and "\n" not in str(error.value)

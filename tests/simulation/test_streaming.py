"""Whole runs whose rows are written while they go on."""

import json

import pytest
from pyarrow import parquet

from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream

TABLE = {
    "model": "llama-3.2-1b", "gpu": "h200", "slo": {"ttft": "50 ms"}, "energy": {"carbon_intensity": 400},
    "serve": {"max_model_len": 2048, "num_gpu_blocks_override": 300, "data_parallel_size": 2},
    "workload": {"synthetic": {
        "count": 60, "arrivals": {"process": "poisson", "rate": 400.0},
        "prompt": {"kind": "uniform", "low": 50, "high": 900}, "output": {"kind": "uniform", "low": 1, "high": 60}}},
}


def test_a_streamed_run_has_the_results_of_a_run_in_memory(tmp_path):
    scenario, ended = Scenario.of(TABLE), []
    kept, streamed = simulate(scenario), stream(scenario, tmp_path / "run", lambda: ended.append(1))
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "requests.parquet", "steps.parquet", "summary.json", "scenario.toml"}
    assert (tmp_path / "run" / "scenario.toml").read_text() == kept.scenario
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == streamed.summary
    assert list(streamed.summary) == list(kept.summary) and len(ended) == 60
    for key in ("completed", "preemptions", "total_output_tokens", "slo_attainment", "max_concurrent_requests", "steps",
                "mean_ttft_ms", "mean_itl_ms", "energy_joules", "carbon_grams", "duration"):
        assert streamed.summary[key] == pytest.approx(kept.summary[key], rel=1e-9), key
    rows = parquet.read_table(tmp_path / "run" / "requests.parquet").sort_by("id")
    assert rows["ttft_s"].to_pylist() == pytest.approx(kept.requests["ttft_s"].to_pylist(), rel=1e-12)
    assert parquet.read_table(tmp_path / "run" / "steps.parquet").num_rows == kept.steps.num_rows
    assert "Successful requests:                     60" in streamed.vllm_block()


def test_a_streamed_run_of_data_ranks_has_the_results_of_a_run_in_memory(tmp_path, monkeypatch):
    """Windows end wherever they may, dummy steps on both sides of them."""
    monkeypatch.setattr("ksim.results.streaming._STEPS", 30)
    table = {**TABLE, "model": "qwen3-30b-a3b", "oracle": "roofline",
             "serve": {"max_model_len": 2048, "data_parallel_size": 3},
             "workload": {"synthetic": {**TABLE["workload"]["synthetic"], "count": 4}}}
    kept, streamed = simulate(Scenario.of(table)), stream(Scenario.of(table), tmp_path / "run")
    for key in ("steps", "mean_batch_tokens", "mfu", "gpu_busy_share", "energy_joules", "dynamic_energy_joules",
                "idle_energy_joules", "duration"):
        assert streamed.summary[key] == pytest.approx(kept.summary[key], rel=1e-9), key
    rows = parquet.read_table(tmp_path / "run" / "steps.parquet").sort_by([("engine", "ascending"),
                                                                           ("step", "ascending")])
    assert rows["joules"].to_pylist() == pytest.approx(kept.steps["joules"].to_pylist(), rel=1e-9)


def test_a_run_that_fails_leaves_what_was_there(tmp_path):
    stream(Scenario.of(TABLE), tmp_path / "run")
    before = (tmp_path / "run" / "requests.parquet").read_bytes()

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(Scenario.of(TABLE), tmp_path / "run", stop)
    assert (tmp_path / "run" / "requests.parquet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_not_a_run_is_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="not the directory of an earlier run"):
        stream(Scenario.of(TABLE), tmp_path)


def test_a_streamed_run_tells_of_its_gateway(tmp_path):
    table = {**TABLE, "flow_control": {"name": "queue_limit", "queue_depth_threshold": 1, "max_requests": 2},
             "router": "least_outstanding", "signals": {"scrape_interval": "1 ms"},
             "serve": {**TABLE["serve"], "max_num_seqs": 4},
             "workload": {**TABLE["workload"], "retries": {"max_retries": 1, "initial_delay": "5 ms"}}}
    kept, streamed = simulate(Scenario.of(table)), stream(Scenario.of(table), tmp_path / "run")
    for key in ("rejected", "attempts", "retries", "held_requests", "mean_held_ms", "max_held_ms"):
        assert streamed.summary[key] == pytest.approx(kept.summary[key], rel=1e-9), key
        assert kept.summary[key]
    rows = parquet.read_table(tmp_path / "run" / "requests.parquet").sort_by("id")
    assert rows["attempts"].to_pylist() == kept.requests["attempts"].to_pylist()
    assert rows["held_s"].to_pylist() == pytest.approx(kept.requests["held_s"].to_pylist(), rel=1e-12)

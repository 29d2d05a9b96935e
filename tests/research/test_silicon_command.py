"""benchmarks.research.silicon, as a user meets it."""

import json

import pytest

from ksim.scenario.scenario import Scenario
from tests.research.command import research
from tests.research.silicon_rows import join, write


def test_measured_runs_are_simulated_and_scored(tmp_path):
    write(tmp_path / "runs.parquet", {}, {"id": "two", "precision": "fp2"}, {"id": "three", "system": "b200_sxm"})
    out = research("silicon", "runs.parquet", "--json", "out.json", "--jobs", "1", folder=tmp_path)
    assert out.splitlines()[-1].startswith("played 2 of 3 runs: TTFT ")
    assert "precision 'fp2' is not known" in out and "AIConfigurator answers" not in out
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert outcome["runs"] == 3 and outcome["answered"] == 2 and outcome["throughput_median_ape"] is None
    assert outcome["ttft_median_ape"] >= 0 and outcome["tpot_median_ape"] >= 0
    rows = {row["id"]: row for row in outcome["rows"]}
    assert rows["one"]["ttft_ape"] == pytest.approx(100 * abs(rows["one"]["predicted_ttft_ms"] / 40 - 1))
    assert rows["two"]["predicted_ttft_ms"] is None and "fp2" in rows["two"]["reason"]
    assert [score["name"] for score in outcome["by_backend"]] == [["vllm"]] and len(outcome["by_run"]) == 3


def test_disaggregated_runs_are_simulated_with_worker_counts(tmp_path):
    alone = {"prefill_gpus_per_worker": 1, "prefill_ep": 1, "decode_workers": 2, "decode_gpus_per_worker": 1,
             "decode_ep": 1, "prefill_dp_attention": False}
    join(tmp_path / "counts.csv", alone, alone | {"id": "two", "spec_method": "mtp"})
    write(tmp_path / "runs.parquet", *({"id": name, "mode": "disagg", "tp_size": None, "pp_size": None}
                                       for name in ("one", "two")), {"id": "three"})
    out = research("silicon", "runs.parquet", "--workers", "counts.csv", "--mode", "disagg", "--jobs", "1",
               "--json", "out.json", folder=tmp_path)
    assert out.splitlines()[-1].startswith("played 1 of 2 runs: TTFT ") and "errors by engine, GPU and tier" in out
    assert "how many tokens vllm drafts" in out
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert outcome["throughput_median_ape"] > 0 and outcome["rows"][0]["throughput_ape"] > 0
    assert [score["name"] for score in outcome["by_backend"]] == [["vllm", "disagg"]]
    assert [score["name"] for score in outcome["by_tier"]] == [["vllm", "h100_sxm", "recipe"]]
    shown = research("silicon", "runs.parquet", "--workers", "counts.csv", "--show", "one", folder=tmp_path)
    (tmp_path / "one.toml").write_text(shown)
    assert {name: pool.replicas for name, pool in Scenario.read(tmp_path / "one.toml").pools.items()} == {
        "prefill": 1, "decode": 2}


def test_the_scenario_of_a_row_reads_back(tmp_path):
    write(tmp_path / "runs.parquet", {}, {"id": "two", "mode": "disagg"})
    (tmp_path / "one.toml").write_text(research("silicon", "runs.parquet", "--show", "one", folder=tmp_path))
    assert Scenario.read(tmp_path / "one.toml").serve.max_num_seqs == 4
    assert "disaggregated" in research("silicon", "runs.parquet", "--show", "two", folder=tmp_path, code=1)


def test_wrong_values_and_options_are_errors(tmp_path):
    write(tmp_path / "runs.parquet", {"silicon_tpot_ms": -1.0})
    assert "row one: column 'silicon_tpot_ms' is -1.0" in research("silicon", "runs.parquet", folder=tmp_path,
                                                               code=1)
    assert "statistic" in research("silicon", "runs.parquet", "--statistic", "mode", folder=tmp_path, code=1)

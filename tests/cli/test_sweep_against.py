"""`ksim sweep` without a directory: the points of a sweep against the first, and why latencies differ."""

import json

import pytest
from pyarrow import parquet

from tests.cli.command import SCENARIO, ksim, ksim_here

ENGINES = ("--over", "engine=vllm-0.33,sglang-0.5.23", "--jobs", 1)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What was written and printed."""
    folder = tmp_path_factory.mktemp("diff")
    (folder / "s.toml").write_text(SCENARIO, encoding="utf-8")
    return folder, ksim("sweep", "s.toml", *ENGINES, "--json", "d.json", folder=folder)


def test_numbers_settings_and_reasons_are_shown_beside_the_first_point(found):
    _, out = found
    for words in ("vllm-0.33", "sglang-0.5.23", "change", "TTFT mean, ms", "J/output token",
                  "other settings that differ", "serve.block_size", "sglang-0.5.23 against vllm-0.33: mean T"):
        assert words in out


def test_the_phases_of_a_point_add_up_to_its_means(found):
    content = json.loads((found[0] / "d.json").read_text())
    assert content["first"] == 1 and content["reasons"]["2"]
    for point in content["points"]:
        for key in ("mean_ttft_ms", "mean_tpot_ms"):
            parts = [value for name, value in point["summary"].items() if name.startswith(f"phases.{key}.")]
            assert len(parts) > 5 and sum(parts) == pytest.approx(point["summary"][key])


def test_limits_count_for_both_engines(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    ksim("sweep", "s.toml", *ENGINES, "--set", "serve.max_num_seqs=2", "-o", "out", folder=tmp_path)
    rows = parquet.read_table(tmp_path / "out" / "runs.parquet").to_pylist()
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert all("max_num_seqs = 2\n" in row["scenario"] for row in rows)


def test_what_cannot_be_compared_is_said(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    alone = ksim_here("sweep", "s.toml", *ENGINES, "--set", "serve.gpu_memory_utilization=0.8", folder=tmp_path)
    assert alone.status == 1 and "mem_fraction_static" in alone.stderr and "fewer than two of 2 points" in alone.stderr
    for over in ("seed=1", "seed=1,2,3,4,5,6,7,8,9"):
        several = ksim_here("sweep", "s.toml", "--over", over, folder=tmp_path)
        assert several.status == 1 and "-o: is missing" in several.stderr
        assert "2 to 8 points are shown against the first" in several.stderr

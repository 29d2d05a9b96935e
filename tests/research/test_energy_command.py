"""`python -m benchmarks.research energy`, as a user meets it."""

import json
import sys

import pytest

from tests.calibration.samples import KERNELS, gemm
from tests.research.command import research
from tests.research.energy_tables import boards, kernels
from tests.research.recorded_engines import record, run, sent


def test_all_measurements_in_a_folder_are_compared(tmp_path):
    kernels(tmp_path)
    boards(tmp_path, *(gemm(m=m) for m in range(1, 41)))
    record(tmp_path, [run("warm", sent((50, 3))), run("poisson-9", sent(*[(120, 12)] * 6, every=0.05))])
    out = research("energy", ".", "--json", "out.json", folder=tmp_path)
    assert f"mean errors of {len(KERNELS)} sustained kernels" in out
    assert "joules of 1 serving runs: median error 0.00 %" in out
    assert "rows of boards held back" in out.splitlines()[-1]
    outcome = json.loads((tmp_path / "out.json").read_text())
    for key in ("kernels_shape_mape", "kernels_family_mape", "kernels_time_mape", "kernels_energy_shape_mape",
                "kernels_energy_family_mape", "table_mape", "table_median_ape", "table_observed_mape"):
        assert outcome[key] >= 0
    assert outcome["serving_median_ape"] == pytest.approx(0, abs=1e-6)
    assert {name: cell["rows"] for name, cell in outcome["table_by_gpu"].items()} == {"h200": outcome["table_rows"]}
    assert len(outcome["kernels"]) == len(KERNELS)


def test_rows_of_an_unknown_gpu_are_an_error(tmp_path):
    boards(tmp_path, gemm(gpu="tpu_v5"))
    out = research("energy", ".", "--json", "out.json", folder=tmp_path, code=1)
    assert "has rows of 'tpu_v5', a GPU that the catalogue lacks" in out and not (tmp_path / "out.json").exists()


def test_without_scipy_it_says_what_to_install(tmp_path, monkeypatch):
    kernels(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    out = research("energy", ".", folder=tmp_path, code=1)
    assert out.startswith("ksim: fitting models needs scikit-learn and scipy: pip install 'ksim-llm[fit]'")

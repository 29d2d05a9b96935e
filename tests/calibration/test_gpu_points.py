"""`ksim gpu points`, as a function of the command line."""

import pytest
import typer
from typer.testing import CliRunner

from ksim.calibration.reading.sweep import points
from ksim.calibration.sweep import BUDGET
from ksim.cli import hardware as command
from ksim.foundation.errors import ConfigError

app = typer.Typer()
app.command()(command.points)


def swept(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("name", ["points.csv", "points.parquet"])
def test_the_command_writes_the_points_and_prints_their_cost(tmp_path, name):
    done = swept("--gpu", "h200", "--families", "rms_norm,copy", "--families", "argmax", "-o", tmp_path / name)
    assert done.exit_code == 0, done.output
    for words in ("points for H200 SXM", "rms_norm bf16", "expected s", "python -m ksim.calibration.runner"):
        assert words in done.output
    assert [part.family for part in points(tmp_path / name)] == ["rms_norm", "copy", "argmax"]


def test_the_default_budget_is_that_of_the_plan():
    assert command.BUDGET == BUDGET


def test_the_layers_of_models_are_among_the_points(tmp_path):
    swept("--gpu", "h200", "--families", "moe", "--model", "mixtral-8x7b", "-o", tmp_path / "p.csv")
    assert {(8, 2, 4096, 14336)} <= {*zip(*(points(tmp_path / "p.csv")[0][name].tolist() for name in
                                            ("e", "topk", "h", "inter")), strict=True)}


def test_a_machine_without_a_gpu_needs_the_option_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr("ksim.calibration.datasheet.nvidia_smi", lambda query: "")
    done = swept("-o", tmp_path / "p.csv")
    assert isinstance(done.exception, ConfigError) and "--gpu: is needed" in str(done.exception)
    monkeypatch.setattr("ksim.calibration.datasheet.nvidia_smi", lambda query: "NVIDIA H200")
    assert swept("-o", tmp_path / "p.csv", "--families", "copy").exit_code == 0


def test_an_unknown_suffix_of_the_file_is_refused(tmp_path):
    done = swept("--gpu", "h200", "--families", "copy", "-o", tmp_path / "p.txt")
    assert "name a file that ends in .csv or .parquet" in str(done.exception)

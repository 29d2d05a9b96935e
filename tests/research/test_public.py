"""Public measurements of whole deployments: read, simulated, scored, and used to fit the power of boards."""

from math import isnan
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from typer.testing import CliRunner

from benchmarks.research import board_power, public
from benchmarks.research.__main__ import app
from benchmarks.research.board_power import Work, fit, work_of
from benchmarks.research.public import Answer, Figures, Maximum, SteadyState, answer, assumptions, read, scores
from ksim.foundation.catalog import entries
from ksim.foundation.errors import ConfigError
from ksim.scenario.hardware import gpu_of

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "public"
STEADY = SteadyState("meta-llama/Llama-3.1-8B-Instruct", "lm-arena-chat", "bfloat16", "H100", 1, 1, 1, 1, 8, 8.0, 60.0,
                     0.9, 1000.0, 7.5, 480.0, 0.48)
MAXIMUM = Maximum("llama-3.1-8b", "h200", 1, "fp8", 128, 32, 64, 20000.0)


def written(path, *rows):
    names = list(rows[0])
    path.write_text("\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]))
    return path


def columns(row):
    return {name: getattr(row, name) for name in type(row).__annotations__ if name != "fitted"}


def test_both_tables_are_read_from_their_folder(tmp_path):
    written(tmp_path / "ml_energy_v3.csv", columns(STEADY), {**columns(STEADY), "itl_p50_ms": 8})
    written(tmp_path / "trtllm_perf_overview.csv", columns(MAXIMUM))
    assert read(tmp_path) == [STEADY, evolve(STEADY, itl_p50_ms=8), MAXIMUM]


@pytest.mark.parametrize(("text", "problem"), [
    ("model,gpu\n", "is no table of steady states or maxima"), ("", "is no table of steady states or maxima")])
def test_another_table_is_refused(tmp_path, text, problem):
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read(tmp_path / "other.csv")
    with pytest.raises(ConfigError, match="has none of ml_energy_v3.csv"):
        read(tmp_path)


def test_a_wrong_value_is_named_with_its_line(tmp_path):
    path = written(tmp_path / "rows.csv", columns(MAXIMUM), {**columns(MAXIMUM), "isl": "many"})
    with pytest.raises(ConfigError, match=r"rows.csv, line 3: isl"):
        read(path)


def test_a_steady_state_has_so_many_in_flight_and_its_joules_are_its_watts_over_its_rate():
    found = answer(evolve(STEADY, output_len_mean=100.0))
    assert not found.reason
    figures = found.predicted
    assert figures.joules == pytest.approx(figures.watts / figures.rate)
    assert figures.rate * figures.itl == pytest.approx(STEADY.mean_in_flight, rel=0.1)  # some steps have prompts
    power = gpu_of("h100").power
    assert power.idle < figures.watts <= power.limit


def test_a_maximum_has_a_rate_and_nothing_else():
    figures = answer(MAXIMUM).predicted
    assert figures.rate > 0 and isnan(figures.itl) and isnan(figures.joules)


def test_rows_about_which_too_little_is_known_are_left_out():
    assert "no settings of Unheard-Of" in answer(evolve(STEADY, model="a/Unheard-Of")).reason
    assert "the prompts of image-chat" in answer(evolve(STEADY, task="image-chat")).reason


def test_scores_are_by_gpu_and_by_what_was_fitted():
    found = [Answer(row, predicted=Figures(factor * row.output_tok_s, 0.0075, 480.0, 0.48 / factor))
             for row, factor in ((STEADY, 1.1), (evolve(STEADY, model="Qwen/Qwen3-14B", max_num_seqs=64), 2.0))]
    apart, fitted = scores(found)
    assert (apart.name, fitted.name) == (("H100", "apart", "> 32"), ("H100", "fitted", "<= 32"))
    assert fitted.errors["rate"] == pytest.approx((10, 10)) and fitted.covered == 1.0 and apart.covered == 0.0


def test_the_recipe_names_models_and_settings_that_there_are():
    known = assumptions()
    assert {checkpoint.model for checkpoint in known.models.values()} <= {*entries("models")}
    assert {known.engine, known.maxima.engine} <= {*entries("engines")}
    assert {checkpoint.fitted for checkpoint in known.models.values()} == {True, False}


def test_a_fit_recovers_the_watts_that_rows_were_made_with(monkeypatch):
    """Rows that differ in what the GPU does tell its terms apart; those that are marked alone are fitted."""
    chance, gpu = np.random.default_rng(1), gpu_of("b200")
    planted = {"idle": 180.0, "busy": 300.0, "bf16": 500.0, "fp8": 600.0, "fp4": 250.0}
    works = [Work(*chance.uniform(0, 0.5, 4), flop=40.0, rest=60.0) for _ in range(24)]
    drawn = [planted["idle"] + sum(planted[name] * getattr(work, name) for name in ("busy", "bf16", "fp8", "fp4")) + 100
             for work in works]
    rows = [evolve(STEADY, gpu="B200", watts_all_gpus=watts) for watts in drawn]
    rows += [evolve(row, model="Qwen/Qwen3-14B", watts_all_gpus=2 * row.watts_all_gpus) for row in rows]
    monkeypatch.setattr(board_power, "work_of", dict(zip(rows, 2 * works, strict=True)).__getitem__)
    found = fit("b200", [row for row in rows if row.watts_all_gpus < 2 * gpu.power.limit])
    chosen = [watts < 0.94 * gpu.power.limit for watts in drawn]
    assert sum(chosen) > 8
    assert found.watts == pytest.approx({**planted, "flop": 1.0}, rel=0.02)
    assert np.median(found.apart) == pytest.approx(-0.5, abs=0.01)


def test_a_step_keeps_no_gpu_busy_for_longer_than_it_takes():
    work = work_of(STEADY)
    assert 0.5 < work.busy + work.bf16 + work.fp8 + work.fp4 < 1.1 and work.flop > 0 < work.rest
    assert work_of(evolve(STEADY, output_tok_s=500.0)).busy == pytest.approx(work.busy / 2)


def test_the_command_says_what_is_missing(tmp_path):
    path = written(tmp_path / "rows.csv", columns(MAXIMUM))
    with pytest.raises(ConfigError, match="has no row that is asked for"):
        CliRunner().invoke(app, ["public", str(path), "--model", "other"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="no row of it is marked"):
        CliRunner().invoke(app, ["public", str(path), "--gpu", "h200", "--fit"], catch_exceptions=False)
    done = CliRunner().invoke(app, ["public", str(path), "--jobs", "1", "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 0 and '"rate"' in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize("name", [pytest.param("h100", marks=pytest.mark.explore), "b200"])
def test_the_files_of_boards_have_what_the_public_rows_say(name):
    if not PUBLIC.exists():
        pytest.skip(f"the public measurements are not at {PUBLIC}")
    power = gpu_of(name).power
    rows = [row for row in read(PUBLIC) if isinstance(row, public.SteadyState)]
    found = fit(name, rows)
    assert found.watts["busy"] == pytest.approx(power.busy, rel=0.03)  # times of large products have moved since
    assert found.watts["idle"] == pytest.approx(power.idle, rel=0.02)
    for dtype, watts in power.experts.items():
        assert found.watts[str(dtype)] == pytest.approx(watts, rel=0.03)
    assert np.median(abs(found.fitted)) < 0.05

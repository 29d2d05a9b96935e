"""A whole tuning: rounds, what is kept, and what is told."""

import sqlite3

import optuna
import pytest

import ksim
from ksim.foundation.errors import ConfigError, KsimError, UnknownName
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.rows import FAILED, OK, STOPPED
from ksim.study.tuning.tune import Tuning, best_table, refusal, remarks
from ksim.study.workers import InProcess
from tests.study.orders import backwards

#: Twelve clients that wait for each other where batches are small.
SCENARIO = Scenario.of({
    "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {"max_model_len": 4096},
    "energy": {"price_per_gpu_hour": 3.0},
    "workload": {"max_concurrency": 12, "synthetic": {
        "count": 32, "arrivals": {"process": "burst"},
        "prompt": {"kind": "uniform", "low": 50, "high": 400}, "output": {"kind": "uniform", "low": 2, "high": 12}}}})
SPACE = {"serve.max_num_seqs": [1, 2, 4, 8, 16], "serve.max_num_batched_tokens": "64:2048:log",
         "serve.tensor_parallel_size": [1, 2, 5]}  # five do not divide its heads
BOUNDS = ["p99_ttft_ms<120", "p99_tpot_ms<8.5"]


def tuned(**more):
    given = {"subject_to": BOUNDS, "space": SPACE, "trials": 16, "round_size": 4, "jobs": 1}
    return ksim.tune(SCENARIO, "usd_per_million_tokens", **{**given, **more})


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A tuning that was kept, by one process."""
    folder = tmp_path_factory.mktemp("tune") / "out"
    return tuned(output=folder)


def test_the_best_trial_is_the_cheapest_of_those_that_keep_the_bounds(kept):
    held = [point for point in kept.points if point.outcome.summary
            and point.value("p99_ttft_ms") < 120 and point.value("p99_tpot_ms") < 8.5]
    cheapest = min(held, key=lambda point: point.value("usd_per_million_tokens"))
    assert kept.best.outcome is cheapest.outcome
    assert {point.values for point in kept.front} == {kept.best.values}  # equal ones are all the best
    assert kept.counts[STOPPED] >= 2 and kept.counts[FAILED] >= 2 and sum(kept.counts.values()) == 16
    assert all("5 does not divide" in row.problem for row in kept.rows if row.status == FAILED)


def test_in_whatever_order_trials_end_the_same_bytes_are_written(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(InProcess, "run", backwards)
    tuned(output=tmp_path / "two")
    for name in ("runs.parquet", "study.json", "scenario.toml", "best.toml"):
        assert (tmp_path / "two" / name).read_bytes() == (kept.directory / name).read_bytes()


def test_a_search_learns_the_same_with_and_without_early_stops(kept):
    patient = tuned(prune=False)
    assert "of the differences in usd_per_million_tokens, " in [*remarks(patient)][-1]
    assert [row.settings for row in patient.rows] == [row.settings for row in kept.rows]
    assert patient.best.values == kept.best.values
    assert patient.best.outcome.settings == kept.best.outcome.settings
    for mine, theirs in zip(kept.rows, patient.rows, strict=True):
        if mine.status == STOPPED:
            assert theirs.status == OK and not mine.numbers.get("completed")
            assert mine.numbers.items() <= theirs.numbers.items()
            assert any(requirement.missed(theirs.numbers) for requirement in kept.goals.required)
        elif mine.status == OK:
            assert all(theirs.numbers[key] == value for key, value in mine.numbers.items() if "at_stop" not in key)


def test_the_best_is_there_as_a_scenario_that_gives_the_same_numbers(kept):
    summary = simulate(Scenario.read(kept.directory / "best.toml")).summary
    assert summary == {**summary, **{key: value for key, value in kept.best.outcome.summary.items() if key in summary}}


def test_a_study_of_optuna_has_all_trials_with_constraints_and_settings(kept):
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{kept.directory / 'study.db'}")
    assert study.metric_names == ["usd_per_million_tokens"] and len(study.trials) == 16
    states = {OK: "COMPLETE", STOPPED: "PRUNED", FAILED: "FAIL"}
    for trial, row in zip(study.trials, kept.rows, strict=True):
        assert trial.state.name == states[row.status]
        assert trial.user_attrs["problem"] == row.problem
        assert trial.user_attrs["settings"]["serve.max_num_seqs"] == str(row.settings["serve.max_num_seqs"])
        assert trial.constraints.keys() >= set(BOUNDS)
        if row.status == OK:
            held = not any(bound.missed(row.numbers) for bound in kept.goals.required)
            assert held is all(trial.constraints[bound] <= 0 for bound in BOUNDS)
            assert trial.value == row.numbers["usd_per_million_tokens"]
    with sqlite3.connect(kept.directory / "study.db") as file:
        assert file.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_study_goes_on_for_more_trials_as_one_of_so_many(kept, tmp_path):
    tuned(output=tmp_path / "out", trials=6)
    tuned(output=tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "runs.parquet").read_bytes() == (kept.directory / "runs.parquet").read_bytes()
    with pytest.raises(ConfigError, match="cannot be resumed: its seed was 0, and now is 1"):
        tuned(output=tmp_path / "out", resume=True, seed=1)
    with pytest.raises(ConfigError, match="holds an earlier study"):
        tuned(output=tmp_path / "out")


def test_a_tuning_tells_and_shows_what_came_out(kept, tmp_path):
    cells = best_table(kept).rows[0].cells
    assert cells[-1] == "best" and cells[1] == str(kept.trial(kept.best).number)
    first, *others = remarks(kept)
    assert first.startswith("16 trials, of which ") and "stopped early" in first
    assert any("trials missed p99_ttft_ms<120" in line for line in others)
    assert any("trials failed: " in line for line in others)
    frame = kept.to_pandas()
    assert len(frame) == 16 and frame["on_front"].sum() == len(kept.front)
    assert "usd_per_million_tokens" in kept._repr_html_()
    assert kept.plot().save(tmp_path / "p.png").stat().st_size > 10_000
    read = Tuning.read(kept.directory)
    assert read.best.values == kept.best.values and read.counts == kept.counts


def test_several_objectives_have_a_front_of_scenarios(tmp_path):
    found = ksim.tune(SCENARIO, "usd_per_million_tokens", "output_throughput", space=SPACE, trials=12, jobs=1,
                      output=tmp_path / "out", seed=3)
    assert len(found.front) == len([*(tmp_path / "out" / "front").iterdir()]) >= 1
    assert found.best is found.front[0] and (tmp_path / "out" / "front" / "1.toml").is_file()
    assert found.plot().save(tmp_path / "p.png").stat().st_size > 10_000


def test_replications_count_by_their_means():
    found = tuned(trials=4, repeat=2, subject_to=["p99_ttft_ms<1e6"], space={"serve.max_num_seqs": [2, 4, 8]})
    assert len(found.rows) == 6 and len({row.seed for row in found.rows}) == 2 and len(found.points) == 3
    mean = sum(row.numbers["usd_per_million_tokens"] for row in found.rows[:2]) / 2
    assert found.points[0].value("usd_per_million_tokens") == pytest.approx(mean)


@pytest.mark.parametrize("prune", [True, False])
def test_bounds_that_nothing_meets_name_what_comes_closest(prune):
    found = tuned(subject_to=["p99_ttft_ms<0.01", "p99_tpot_ms<1e6"], trials=8, prune=prune)
    assert found.best is None and not found.front
    said = refusal(found)
    assert said.startswith("none of 8 trials counts; trial ") and "p99_ttft_ms is " in said
    assert "not < 0.01" in said and "p99_tpot_ms" not in said
    assert said in found._repr_html_().replace("&lt;", "<")


def test_mistakes_are_named_before_anything_runs():
    with pytest.raises(UnknownName, match="did you mean 'usd_per_million_tokens'"):
        ksim.tune(SCENARIO, "usd_per_milion_tokens", space=SPACE)
    with pytest.raises(KsimError, match="did you mean 'max_num_seqs'"):
        ksim.tune(SCENARIO, "duration", space={"serve.max_num_seq": [1, 2]})
    with pytest.raises(ConfigError, match="names nothing to look for"):
        ksim.tune(SCENARIO, space=SPACE)
    with pytest.raises(ConfigError, match="expected different values, not none"):
        ksim.tune(SCENARIO, "duration", space={"serve.max_num_seqs": []})
    with pytest.raises(ConfigError, match="--trials: expected at least 1"):
        tuned(trials=0)


def test_optuna_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("ksim.study.tuning.tune.find_spec", lambda library: None)
    with pytest.raises(KsimError, match="ksim tune needs Optuna: pip install 'ksim-llm\\[tune\\]'"):
        tuned()

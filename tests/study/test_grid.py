"""Combinations of settings, and how each of them goes."""

import math

import pytest

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.scenario.scenario import Scenario
from ksim.simulation import simulate
from ksim.study.experiment import outcome, problem_of
from ksim.study.grid import SettingValues, combinations, short_names, value_text

SCENARIO = Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {"max_model_len": 1000},
                        "workload": {"synthetic": {
                            "count": 3, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 40},
                            "output": {"kind": "uniform", "low": 2, "high": 9}}}})
AXES = [SettingValues("serve.max_num_seqs", (1, 2, 3)), SettingValues("gpu", ("h100", "h200"))]


@pytest.mark.parametrize(("text", "axis"), [
    ("serve.max_num_seqs=16,64", SettingValues("serve.max_num_seqs", (16, 64))),
    ("power.cap=400 W, 500 W", SettingValues("power.cap", ("400 W", "500 W"))),
    ("power.cap='400 W','500, or more'", SettingValues("power.cap", ("400 W", "500, or more"))),
    ("oracle={name='waves', compute=0.7},roofline",
     SettingValues("oracle", ({"name": "waves", "compute": 0.7}, "roofline"))),
    ('collectives=["ring","direct"],["ring"]', SettingValues("collectives", (["ring", "direct"], ["ring"]))),
    ("serve.async_scheduling=true,false", SettingValues("serve.async_scheduling", (True, False))),
    ("model=[x].json,a=b", None), ("gpu=h200", SettingValues("gpu", ("h200",))),
])
def test_values_are_cut_at_commas_outside_quotes_and_brackets(text, axis):
    assert SettingValues.parse(text) == (axis or SettingValues("model", ("[x].json", "a=b")))


@pytest.mark.parametrize(("text", "message"), [
    ("gpu", "expected key=value,value, not 'gpu'"), ("=1,2", "expected key=value,value"),
    ("gpu=", "gpu: expected values with commas between, not ''"), ("gpu=h100,", "expected values with commas"),
    ("gpu=h100,h100", "gpu: the same value comes twice"), ("gpu='h100,h200", "a quote or bracket is left open"),
    ("collectives=[ring", "a quote or bracket is left open"),
])
def test_values_that_cannot_be_read_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        SettingValues.parse(text)


def test_every_combination_comes_once():
    chosen = combinations(AXES)
    assert len(chosen) == 6 and chosen[1] == {"serve.max_num_seqs": 1, "gpu": "h200"}
    assert len({tuple(settings.values()) for settings in chosen}) == 6


def test_a_sample_of_combinations_has_no_duplicates_and_follows_the_seed():
    grid = [SettingValues(f"k{place}", tuple(range(100))) for place in range(4)]
    drawn = [combinations(grid, 50, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(settings.values()) for settings in drawn[0]}) == 50
    every = combinations(AXES)
    assert all(settings in every for settings in combinations(AXES, 5))
    assert combinations(AXES, 6) == combinations(AXES, 7) == every


def test_a_setting_is_named_once():
    with pytest.raises(ConfigError, match="gpu comes twice"):
        combinations([*AXES, SettingValues("gpu", ("l4",))])


def test_an_outcome_has_its_settings_and_the_numbers_of_the_run_with_them():
    chosen = combinations(AXES[:1])
    found = [outcome(SCENARIO, settings) for settings in chosen]
    assert [each.settings for each in found] == chosen
    assert found[0].summary["duration"] > found[1].summary["duration"] > found[2].summary["duration"]


@pytest.mark.parametrize(("settings", "problem"), [
    ({"serve.tensor_parallel_size": 5}, "5 does not divide 32 attention heads"),
    ({"serve.max_num_sequences": 4}, "unknown key; did you mean 'max_num_seqs'"),
    ({"gpu": "h2000"}, "did you mean 'h200'"),
    ({"model": "llama-3.1-70b"}, "does not fit"),
])
def test_what_cannot_be_built_has_a_problem_and_no_numbers(settings, problem):
    found = outcome(SCENARIO, settings)
    assert problem in found.problem and found.summary is None


def test_an_outcome_names_rejected_requests():
    found = outcome(SCENARIO, {"workload.synthetic.prompt": {"kind": "fixed", "value": 2000}})
    assert found.unserved.startswith("3 rejected of 3 requests: ") and found.summary["completed"] == 0
    assert found.unserved_share == 1.0 and not found.problem
    assert outcome(SCENARIO, {}).unserved_share == 0.0


class Breaks:
    """An oracle with a bug."""

    def seconds(self, kernel, gpu):
        return 1 / 0


def test_a_bug_of_a_plug_in_is_one_points_problem():
    chosen = [{"oracle": f"{__name__}:Breaks"}, {"oracle": "roofline"}]
    found = [outcome(SCENARIO, settings) for settings in chosen]
    assert found[0].problem.startswith("ZeroDivisionError: division by zero; `ksim run`") and found[1].summary


def test_settings_that_cannot_be_built_are_found_without_a_run(monkeypatch, tmp_path):
    monkeypatch.setattr(simulate, "play", None)
    (tmp_path / "t.csv").write_text("arrival,prompt\n0,x\n")
    assert problem_of(SCENARIO, {}) == ""
    for settings, words in (({"serve.tensor_parallel_size": 5}, "does not divide"),
                            ({"serve.max_num_seqs": 0}, "must be > 0"), ({"model": "llama-3.1-70b"}, "does not fit"),
                            ({"workload": {"replay": {"path": str(tmp_path / "t.csv")}}}, "t.csv:1"),
                            ({"workload": {"replay": {"path": str(tmp_path / "none.csv")}}}, "none.csv")):
        assert words in problem_of(SCENARIO, settings)


def test_an_unknown_name_in_a_grid_is_an_error():
    with pytest.raises(UnknownName, match="did you mean 'h200'"):
        problem_of(SCENARIO, {"gpu": "h2000"})


def test_short_names_and_values_of_settings():
    assert short_names(["serve.max_num_seqs", "oracle.name", "router.name"]) == {
        "serve.max_num_seqs": "max_num_seqs", "oracle.name": "oracle.name", "router.name": "router.name"}
    assert [value_text(value) for value in ("400 W", True, 0.9, 64, math.inf, ["a"])] == [
        "400 W", "true", "0.9", "64", "inf", '["a"]']

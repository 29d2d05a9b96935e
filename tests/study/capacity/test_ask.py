"""Capacity questions from a scenario to an answer and its directory."""

import json
import re
from pathlib import Path

import pytest
from pyarrow import parquet

import ksim
from ksim.foundation.errors import ConfigError, WorkerLost
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.study.capacity import trial
from ksim.study.capacity.ask import assumptions, axes_of, criteria_of
from ksim.study.capacity.judge import set_ups
from ksim.study.capacity.traffic import gpus_of
from ksim.study.directory import StudyDirectory
from ksim.study.experiment import play
from ksim.study.grid import SettingValues
from tests.cli.command import ksim as command

TABLE = {
    "model": "qwen3-0.6b", "gpu": "h100", "serve": {"max_model_len": 512},
    "energy": {"price_per_gpu_hour": {"h100": 3}},
    "workload": {"synthetic": {
        "count": 50, "arrivals": {"process": "poisson", "rate": 4.0}, "prompt": {"kind": "fixed", "value": 64},
        "output": {"kind": "fixed", "value": 4}}},
}
FEW = {"requests": 40, "replications": 3, "model_errors": False}
TARGET = "ttft:median:20ms"


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """How many GPUs 1,500 requests/s need, with its directory and what was told meanwhile."""
    folder = tmp_path_factory.mktemp("capacity") / "study"
    stages, estimates = [], []
    found = ksim.capacity(Scenario.of(TABLE), [TARGET], 1500.0, {"serve.tensor_parallel_size": [1, 3]}, jobs=1,
                          output=folder, on_progress=lambda *told: stages.append(told),
                          on_estimate=lambda text: estimates.append((text, len(stages))), **FEW)
    return found, folder, (stages, estimates)


def test_estimates_come_before_anything_is_run(asked):
    found, _, (_, [(text, stages_before)]) = asked
    assert re.match(r"estimated, before anything is run: TP1 \d+ GPUs \(ttft median \d.* ms\)$", text)
    assert text in found.notes and stages_before == 0


def test_the_best_keeps_the_targets_with_more_than_one_replica(asked):
    found, _, _ = asked
    best = found.best
    assert best.setup.name == "TP1" and best.replicas > 1 and best.point.rate == 1500.0
    assert found.sentence.startswith(f"{best.gpus} GPUs ({best.replicas} replicas of TP1) for 1500 requests/s")
    assert best.dollars > 0 and best.joules > 0
    assert "TP3: " in found.table and "3 does not divide" in found.table


def test_the_answer_says_what_it_assumes(asked):
    found, folder, _ = asked
    engines, requests, prices = found.assumptions
    assert engines.startswith("engines: qwen3-0.6b, weights bf16, KV cache bf16, vLLM 0.33, ")
    assert "context 512" in engines
    assert "prompts of 64 tokens on the mean" in requests and "outputs of 4 tokens" in requests
    assert prices == "prices: h100 $3/h, none of energy"
    assert all(f"* assumed {text}" in found.text for text in found.assumptions)
    assert json.loads((folder / "capacity.json").read_text())["assumptions"] == list(found.assumptions)


def test_what_differs_between_set_ups_is_assumed_with_all_its_values():
    scenario = Scenario.of({**TABLE, "serve": {}})
    plan, _ = criteria_of(scenario, [TARGET], None, None, False, 0)
    made = set_ups(scenario, axes_of(["engine=vllm-0.33,sglang-0.5", "gpu=h100,h200"]))
    engines, *_ = assumptions(scenario, made, plan)
    assert "vLLM 0.33 or SGLang" in engines and "qwen3-0.6b or" not in engines


def test_costs_are_per_output_token_first_and_then_per_token_of_prompts_and_outputs(asked):
    """Prompts have 64 tokens and outputs 4, so an output token costs 17 times as much as a token of either."""
    found, _, _ = asked
    one = found.document["set_ups"][0]
    assert one["dollars_per_million_output_tokens"] == pytest.approx(17 * one["usd_per_million_tokens"])
    assert one["joules_per_output_token"] == pytest.approx(17e-6 * one["joules_per_million_tokens"])
    heads = [cell.strip() for cell in found.table.splitlines()[0].split("|")]
    assert [head for head in heads if "token" in head] == [
        "$/M output tokens", "J/output token", "$/M tokens (prompt and output)", "J/M tokens (prompt and output)"]
    text = "\n".join(str(row) for row in ksim.simulate(found.best_scenario)._repr_html_().split("</tr>"))
    assert "$/M output tokens" in text and "J/output token" in text


def test_its_directory_has_the_answer_and_every_run(asked):
    found, folder, _ = asked
    study = StudyDirectory.read(folder)
    assert study.head.kind == "capacity" and study.head.command["rate"] == 1500.0
    assert json.loads((folder / "capacity.json").read_text()) == json.loads(json.dumps(found.document))
    runs = parquet.read_table(folder / "runs.parquet").to_pandas()
    assert len(runs) == found.runs and set(runs.status) <= {"ok", "failed"}
    assert not runs.duplicated(["point", "replication"]).any()
    assert (folder / "plots" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "runs.jsonl").exists()


def test_the_page_names_every_key_of_the_answer(asked):
    document = asked[0].document
    page = (Path(ksim.__file__).parents[1] / "docs" / "capacity.md").read_text(encoding="utf-8")
    best = document["set_ups"][0]
    for keys in (document, best, best["point"], best["highest_rate"], best["light"]):
        assert not [key for key in keys if f"`{key}`" not in page]


def test_the_best_scenario_runs_with_its_gpus_at_the_rate(asked):
    found, folder, _ = asked
    best = Scenario.read(folder / "best.toml")
    assert best == found.best_scenario
    assert gpus_of(Fleet.of(best)) == found.best.gpus
    assert ksim.simulate(best).summary["offered_request_rate"] == pytest.approx(1500.0, rel=0.5)


def test_each_rate_that_was_tried_is_a_row_for_pandas(asked):
    found, _, _ = asked
    frame = found.to_pandas()
    assert set(frame.set_up) == {"TP1"} and len(frame) == len(found.best.points) > 4
    assert {"rate", "gpus", "goodput.value", "serve.tensor_parallel_size"} <= set(frame.columns)


def test_a_notebook_shows_the_answer_and_its_figure(asked):
    found, _, _ = asked
    html = found._repr_html_()
    assert found.sentence in html and "<table>" in html and "3 does not divide" in html
    assert found.plot()._repr_png_().startswith(b"\x89PNG")


def test_progress_names_each_stage_and_never_goes_back(asked):
    found, _, (stages, _) = asked
    done = [place for _, place, _ in stages]
    assert done == sorted(done) and max(done) < stages[0][2]
    assert any(f"({found.runs} runs)" in text for text, *_ in stages)


def test_an_answer_has_nothing_left_to_resume(asked):
    _, folder, _ = asked
    with pytest.raises(ConfigError, match="is finished, so there is nothing to go on with"):
        ksim.capacity(Scenario.of(TABLE), [TARGET], output=folder, resume=True, **FEW)
    with pytest.raises(ConfigError, match="--resume goes on with it, --force replaces it"):
        ksim.capacity(Scenario.of(TABLE), ["ttft:p90:1s"], output=folder, **FEW)
    assert not (folder / "observations").exists()


def test_a_killed_question_goes_on_and_ends_with_the_same_answer(tmp_path, monkeypatch):
    """No trial is run twice, also where what a trial has shown was kept and its row was not, or the other way round."""
    ran = []
    monkeypatch.setattr(trial, "play", lambda *given: ran.append(1) or play(*given))
    question = {"scenario": Scenario.of(TABLE), "slo": [TARGET], "jobs": 1, **FEW, "requests": 20, "replications": 2}
    whole = ksim.capacity(**question, output=tmp_path / "whole")
    all_runs = len(ran)

    def killed(text, *_):
        if "(9 runs)" in text:
            raise WorkerLost("a process was killed")  # which is no answer, unlike another KsimError

    with pytest.raises(WorkerLost):
        ksim.capacity(**question, output=tmp_path / "cut", on_progress=killed)
    kept = sorted((tmp_path / "cut" / "observations").iterdir())
    kept[0].write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="cannot be resumed"):
        ksim.capacity(**{**question, "slo": ["ttft:median:30ms"]}, output=tmp_path / "cut", resume=True)
    ran.clear()
    found = ksim.capacity(**question, output=tmp_path / "cut", resume=True)
    assert found.document == whole.document and len(ran) == all_runs - len(kept) + 1
    one, other = (StudyDirectory.read(tmp_path / name).rows for name in ("whole", "cut"))
    assert sorted(row.line for row in one) == sorted(row.line for row in other)
    assert not (tmp_path / "cut" / "observations").exists()


def test_set_ups_are_made_of_lists_and_not_of_ranges():
    assert axes_of({"gpu": "h100,h200"}) == axes_of(["gpu=h100,h200"]) == [SettingValues("gpu", ("h100", "h200"))]
    for over in ({"power.cap": "400:700"}, ["power.cap=400:700"]):
        with pytest.raises(ConfigError, match="power.cap: set-ups are compared value by value"):
            axes_of(over)


def test_targets_of_the_scenario_count_where_none_are_given():
    scenario = Scenario.of({**TABLE, "slo": {"ttft": "200 ms", "tpot": "20 ms"}})
    plan, notes = criteria_of(scenario, (), None, None, True, 0)
    assert [str(target) for target in plan.targets] == ["ttft:p99:0.2s", "tpot:p99:0.02s"] and "[slo]" in notes[0]
    with pytest.raises(ConfigError, match="name a target"):
        criteria_of(Scenario.of(TABLE), (), None, None, True, 0)


def test_the_command_prints_the_answer_and_writes_it(tmp_path):
    (tmp_path / "s.toml").write_text(Scenario.of(TABLE).to_toml())
    words = ("capacity", "s.toml", "--slo", TARGET, "--requests", "40", "--replications", "3", "--no-model-error",
             "-j", "1", "--json", "c.json")
    printed = command(*words, folder=tmp_path)
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["sentence"] in printed and document["best"] == "TP1 on h100"
    assert "requests/s on 1 GPU (TP1 on h100); 95 %: " in printed
    assert printed.startswith("| set-up")


def test_a_study_that_is_there_is_replaced_only_with_force(asked):
    _, folder, _ = asked
    with pytest.raises(ConfigError, match="holds an earlier study"):
        ksim.capacity(Scenario.of(TABLE), [TARGET], jobs=1, output=folder, **FEW)

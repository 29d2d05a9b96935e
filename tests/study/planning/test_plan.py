"""Plans from a question to an answer and its directory."""

import json
import re
from html import unescape

import pytest

import ksim
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.scenario import Scenario
from ksim.study.planning.ask import with_engine
from ksim.study.planning.ranking import dominates
from tests.cli.command import ksim as command

TABLE = {
    "model": "qwen3-0.6b", "gpu": "h100", "serve": {"max_model_len": 512, "max_num_seqs": 64},
    "workload": {"synthetic": {
        "count": 50, "arrivals": {"process": "poisson", "rate": 4.0}, "prompt": {"kind": "fixed", "value": 64},
        "output": {"kind": "fixed", "value": 4}}},
}
NARROW = {"engine": ["vllm-0.33"], "serve.tensor_parallel_size": [1, 2], "serve.max_num_batched_tokens": [8192],
          "serve.quantization": ["fp8"], "serve.kv_cache_dtype": ["auto"]}
FEW = {"requests": 60, "replications": 3, "over": NARROW, "time": "3600s"}
SLO = ["ttft:median:20ms"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The cheapest deployment for 300 requests/s on GPUs of two prices, with its directory."""
    folder = tmp_path_factory.mktemp("plan") / "study"
    found = ksim.plan(Scenario.of(TABLE), 300.0, SLO, ["h100=2", "h200=5"], output=folder, finalists=2, **FEW)
    return found, folder


def test_the_winner_is_simulated_and_keeps_the_targets(planned):
    found, _ = planned
    best = found.best
    assert best.stands and best.point.rate == 300.0 and best.setup.settings["gpu"] == "h100"
    assert best.point.replications == 3
    assert best.costs["usd"] == pytest.approx(2 * best.gpus)
    assert found.sentence.startswith(f"{best.gpus} GPUs in ")
    assert "carry 300 requests/s: TTFT median " in found.sentence
    assert "$" in found.sentence


def test_no_option_that_may_cost_less_is_left_out(planned):
    found, _ = planned
    tried = {id(one.option) for one in found.finalists}
    cheaper = [option for option in found.options if option.costs["usd"] < found.best.costs["usd"]]
    families = {option.name.partition(", 8,192")[0] for option in cheaper if id(option) not in tried}
    assert not families


def test_no_finalist_is_simulated_with_more_gpus_than_may_win(planned):
    found, _ = planned
    later = [one for one in found.finalists if one.option.costs["usd"] > found.best.costs["usd"]]
    assert later and all(one.costs["usd"] <= found.best.costs["usd"] or one.option.replicas == 1 for one in later)


def test_options_are_ranked_by_cost(planned):
    found, _ = planned
    assert found.objectives == ("usd",)
    costs = [round(option.costs["usd"], 6) for option in found.options]
    assert costs == sorted(costs)
    assert {kind for option in found.options for kind in option.gpu.split(" + ")} == {"h100", "h200"}


def test_the_answer_says_what_it_assumes_and_what_would_change_it(planned):
    found, _ = planned
    assert found.assumptions[0].startswith("engines: qwen3-0.6b") and "h100 $2/h, h200 $5/h" in found.assumptions[2]
    assert {change.what for change in found.changes} == {"prompts longer by 20 %", "outputs longer by 20 %",
                                                         "20 % more requests/s"}
    more = next(change for change in found.changes if change.what == "20 % more requests/s")
    assert more.gpus >= min(option.gpus for option in found.options)


def test_the_directory_has_the_answer_and_its_scenario(planned):
    found, folder = planned
    document = json.loads((folder / "plan.json").read_text())
    assert document["sentence"] == found.sentence and document["best"] == found.best.setup.name
    assert document["candidates"] == found.candidates and len(document["options"]) == len(found.options)
    assert sum(option["simulated"] for option in document["options"]) == len(found.finalists)
    made = Scenario.read(folder / "best.toml")
    replicas = sum(pool.replicas for pool in made.pools.values()) or 1
    assert replicas >= found.best.replicas and made.workload.synthetic.arrivals.rate == 300.0
    assert (folder / "plots" / "front.png").is_file() and (folder / "runs.parquet").is_file()
    with pytest.raises(ConfigError, match="is finished"):
        ksim.plan(Scenario.of(TABLE), 300.0, SLO, ["h100=2", "h200=5"], output=folder, resume=True, finalists=2, **FEW)


def test_its_page_has_the_answer_the_finalists_and_all_candidates(planned, tmp_path):
    found, folder = planned
    page = tmp_path / "plan.html"
    command("report", str(folder), "-o", str(page), folder=tmp_path)
    text = unescape(page.read_text(encoding="utf-8"))
    assert found.sentence in text and "The finalists, as simulated" in text and "All candidates" in text


def test_a_plan_goes_on_where_it_was_stopped(tmp_path, planned):
    whole, _ = planned
    ended = 0

    def stop(text, done, parts):
        nonlocal ended
        ended += "(2 runs)" in text
        if ended:
            raise KeyboardInterrupt

    ask = {"gpus": ["h100=2", "h200=5"], "finalists": 2, **FEW}
    with pytest.raises(KeyboardInterrupt):
        ksim.plan(Scenario.of(TABLE), 300.0, SLO, output=tmp_path / "study", on_progress=stop, **ask)
    again = ksim.plan(Scenario.of(TABLE), 300.0, SLO, output=tmp_path / "study", resume=True, **ask)
    assert again.sentence == whole.sentence and again.document["finalists"] == whole.document["finalists"]


def test_several_objectives_give_a_front(tmp_path):
    """The GPU that is cheaper here draws more: neither costs less of both."""
    found = ksim.plan(Scenario.of(TABLE), 50.0, SLO, ["h100=0.6", "l40s=0.8"], ["usd", "joules"], finalists=4,
                      output=tmp_path / "study", **FEW)
    front = found.front
    assert found.objectives == ("usd", "joules") and found.best in front and len(front) > 1
    for one in front:
        assert not any(dominates(other.costs, one.costs, found.objectives) for other in found.finalists if other.stands)
    product = [one.costs["usd"] * one.costs["joules"] for one in found.finalists if one.stands]
    assert product[0] == min(product)
    assert f"; chosen of {len(front)} on the front for the least product of $/h and J/output token" in found.sentence
    document = json.loads((tmp_path / "study" / "plan.json").read_text(encoding="utf-8"))
    assert document["front"] == [one.setup.name for one in front]
    assert sum("on the front" in line for line in found.text.splitlines()) >= len(front) - 1
    assert (tmp_path / "study" / "plots" / "front.png").is_file()


def test_a_single_objective_has_a_front_of_equals(planned):
    found, _ = planned
    assert {one.costs["usd"] for one in found.front} == {found.best.costs["usd"]}
    assert "on the front" not in found.text


def test_targets_that_nothing_keeps_are_said():
    found = ksim.plan(Scenario.of(TABLE), 10.0, ["ttft:p99:1ms"], **FEW)
    assert found.best is None and not found.options and found.best_scenario is None
    assert found.sentence.startswith(f"none of {found.candidates} candidates carries 10 requests/s within ttft:p99:1ms")
    assert re.search(r"with one request at a time, TTFT p99 is [\d.]+ ms on the fastest; allow more$", found.sentence)


def test_too_few_gpus_are_said():
    found = ksim.plan(Scenario.of(TABLE), 1e5, SLO, ["h100:2=2"], **FEW)
    assert found.best is None and found.sentence.endswith("there are too few GPUs; allow more of them, or name others")


def test_shared_prefixes_are_taken_from_the_cache():
    shared = Scenario.of(TABLE).with_values({"serve.max_model_len": 1024, "workload.synthetic.count": 300,
                                             "workload.synthetic.prefixes": {"groups": 2, "tokens": 320}})
    found = ksim.plan(shared, 20.0, SLO, finalists=1, **FEW)
    assert found.best is not None
    assert "half the reuse of prefixes" in {change.what for change in found.changes}


def test_engines_are_compared_where_the_scenario_names_none(tmp_path):
    file = tmp_path / "scenario.toml"
    file.write_text(Scenario.of(TABLE).to_toml().replace('engine = "vllm-0.33"\n', ""), encoding="utf-8")
    assert with_engine((), catalog.read(file)) == {}
    assert with_engine(["engine=sglang-0.5.23"], {"engine": "vllm-0.33"}) == {"engine": ("sglang-0.5.23",)}
    few = {**FEW, "over": {key: values for key, values in NARROW.items() if key != "engine"}}
    found = ksim.plan(file, 20.0, SLO, finalists=2, **few)
    assert {option.settings["engine"] for option in found.options} == {"vllm-0.33", "sglang-0.5.23"}
    assert len({one.setup.settings["engine"] for one in found.finalists}) == 2
    file.write_text('engine = "vllm-0.33"\n' + file.read_text(encoding="utf-8"), encoding="utf-8")
    alone = ksim.plan(file, 20.0, SLO, finalists=1, **few)
    assert {option.settings["engine"] for option in alone.options} == {"vllm-0.33"}


def test_requests_that_engines_would_refuse_are_said():
    with pytest.raises(ConfigError, match=r"serve\.max_model_len: 100% of the requests are longer than 512 tokens"):
        ksim.plan(Scenario.of(TABLE).with_values({"workload.synthetic.prompt.value": 600}), 4.0, SLO, **FEW)


@pytest.mark.parametrize(("ask", "said"), [
    ({"rate": 0.0}, r"--rate: expected requests/s, more than 0, not 0\.0"),
    ({"slo": []}, r"--slo: name a target"),
    ({"gpus": ["h100=2", "h200"]}, r"--gpu: h200 has no price, and h100 has one; give all of them one"),
    ({"gpus": ["h100=free"]}, r"--gpu: h100=free: expected dollars an hour"),
    ({"gpus": ["h100:=2"]}, r"--gpu: expected NAME\[:COUNT\]\[=DOLLARS\]"),
    ({"minimize": ["usd"]}, r"--minimize: usd needs prices"),
    ({"minimize": ["carbon"]}, r"--minimize: carbon needs --set energy\.grid=NAME"),
    ({"minimize": ["euros"]}, r"--minimize: expected gpus, usd, joules, carbon, not 'euros'"),
    ({"time": "soon"}, r"--time: "),
])
def test_what_no_plan_can_be_made_of_is_refused(ask, said):
    with pytest.raises(ConfigError, match=said):
        ksim.plan(Scenario.of(TABLE), **{"rate": 4.0, "slo": SLO, **ask})


def test_pools_are_the_plans_own():
    with pytest.raises(KsimError, match="a plan makes the pools itself"):
        ksim.plan(Scenario.of({**TABLE, "pools": {"a": {"role": "both"}}}), 4.0, SLO)

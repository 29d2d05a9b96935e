"""How popular experts are, as a scenario says it."""

import json

import pytest

from ksim.flow.batch import Batch
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.scenario.defaults import Deployment
from ksim.scenario.models import model_of
from ksim.scenario.routing import routing_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.specs.shard import Routing
from tests.scenario.tables import TABLE

MIXTRAL = model_of("mixtral-8x7b")
ROW = [4, 2, 1, 1, 0, 0, 0, 0]


def measured(path):
    return routing_of(Choice("measured", {"path": str(path)}), MIXTRAL)


def test_uniform_and_zipf_routing():
    assert routing_of(Choice("uniform"), MIXTRAL) == Routing()
    assert routing_of(Choice("zipf", {"exponent": 0.8}), MIXTRAL) == Routing(0.8)


def test_any_routing_may_move(tmp_path):
    moving = {"deviation": 0.3, "step_correlation": 0.9, "layer_correlation": 1}
    assert routing_of(Choice("uniform", moving), MIXTRAL) == Routing(0.0, (), 0.3, 0.9, 1.0)
    (tmp_path / "shares.json").write_text(json.dumps([ROW] * 32))
    routing = routing_of(Choice("measured", {"path": str(tmp_path / "shares.json"), **moving}), MIXTRAL)
    assert routing.at(3).deviation == 0.3 and len(routing.at(3).shares) == 1


def test_a_json_list_of_shares_holds_for_all_layers(tmp_path):
    (tmp_path / "shares.json").write_text(json.dumps(ROW))
    assert measured(tmp_path / "shares.json").shares == ((0.5, 0.25, 0.125, 0.125, 0, 0, 0, 0),)


def test_a_csv_file_has_a_row_for_each_layer(tmp_path):
    rows = [ROW if layer else [1] * 8 for layer in range(32)]
    (tmp_path / "shares.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    routing = measured(tmp_path / "shares.csv")
    assert routing.at(0).shares == ((0.125,) * 8,) and routing.at(31).shares[0][0] == 0.5


@pytest.mark.parametrize("text, problem", [
    ("[1, 2]", "has 1 rows of 2 shares; mixtral-8x7b needs 1 row or 32, of 8 each"),
    (json.dumps([ROW, ROW]), "has 2 rows of 8 shares"),
    ("[0, 0, 0, 0, 0, 0, 0, 0]", "not all 0"),
    ("[-1, 1, 1, 1, 1, 1, 1, 1]", "finite numbers of 0 or more"),
    ("{}", "is no table of numbers"),
    ('["many"]', "is no table of numbers"),
    ("[", "is no table of numbers"),
])
def test_malformed_files_of_shares_are_refused(tmp_path, text, problem):
    (tmp_path / "shares.json").write_text(text)
    with pytest.raises(DataError, match=problem):
        measured(tmp_path / "shares.json")


def test_a_missing_file_of_shares_is_refused(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        measured(tmp_path / "absent.json")


@pytest.mark.parametrize("choice, problem", [
    (Choice("zipf"), "'zipf' takes exponent, and was given nothing"),
    (Choice("uniform", {"exponent": 1}), "'uniform' takes nothing, and was given exponent"),
    (Choice("zipf", {"exponent": -1}), "expected a number of 0 or more, not -1"),
    (Choice("uniform", {"deviation": 6}), "routing.deviation: expected a number from 0 to 5, not 6"),
    (Choice("uniform", {"layer_correlation": "1"}), "layer_correlation: expected a number from 0 to 1, not '1'"),
    (Choice("uniform", {"step_correlation": 0.5}), "is of popularity that moves; set deviation, or leave it out"),
])
def test_wrong_options_of_a_routing_are_refused(choice, problem):
    with pytest.raises(ConfigError, match=problem):
        routing_of(choice, MIXTRAL)


def test_an_unknown_routing_is_answered_with_those_there_are():
    with pytest.raises(UnknownName, match="no routing named 'ziph'; did you mean 'zipf'"):
        routing_of(Choice("ziph"), MIXTRAL)


def test_a_model_without_experts_is_not_routed(tmp_path):
    (tmp_path / "shares.json").write_text("[1]")
    with pytest.raises(ConfigError, match="llama-3.1-8b has no experts; leave it out"):
        routing_of(Choice("measured", {"path": str(tmp_path / "shares.json")}), model_of("llama-3.1-8b"))


def test_the_path_of_a_routing_is_relative_to_the_scenario(tmp_path):
    scenario = Scenario.of({**TABLE, "routing": {"name": "measured", "path": "shares.json"}}, folder=tmp_path)
    assert scenario.routing.options["path"] == str(tmp_path / "shares.json")


def test_skew_makes_a_step_slower():
    """Of 512 tokens the fullest expert has more to do, and the fullest rank too."""
    def seconds(routing, **serve):
        table = {**TABLE, "model": "qwen3-30b-a3b", "routing": routing, "serve": {"max_model_len": 8192, **serve}}
        return Deployment.of(Scenario.of(table)).timers()[0].step_cost(Batch.of(*[(1, 500)] * 512)).seconds

    experts = {"data_parallel_size": 8, "enable_expert_parallel": True}
    assert seconds({"name": "zipf", "exponent": 1.0}, **experts) > 1.05 * seconds("uniform", **experts)


def test_balanced_experts_answer_sooner_for_as_much_energy():
    """Eight engines of prompts: EPLB's copies take from the fullest rank what the others have room for."""
    def run(**serve):
        synthetic = {"count": 32, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 1000},
                     "output": {"kind": "fixed", "value": 3}}
        return simulate(Scenario.of({
            **TABLE, "model": "qwen3-30b-a3b", "routing": {"name": "zipf", "exponent": 1.0}, "oracle": "waves",
            "workload": {"synthetic": synthetic}, "serve": {
                "data_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 8192, **serve}})).summary

    plain, balanced = run(), run(enable_eplb=True, num_redundant_experts=32)
    assert balanced["duration"] < 0.95 * plain["duration"]
    assert balanced["mean_ttft_ms"] < 0.95 * plain["mean_ttft_ms"]
    assert balanced["dynamic_energy_joules"] == pytest.approx(plain["dynamic_energy_joules"], rel=0.02)

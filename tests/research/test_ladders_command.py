"""`python -m benchmarks.research ladders`, as a user meets it."""

import json

from tests.research.command import research

TABLE = """\
ladder,run,arm,stage,rate_target_rps,req_s
pd-multi-tier-gpt-oss-120b-h200,w2-docqa,pd_multi_tier,rate,45,44
of my own,a,b,rate,2,2
"""


def test_ladders_that_are_not_simulated_are_counted_with_reasons(tmp_path):
    (tmp_path / "ladders.csv").write_text(TABLE)
    out = research("ladders", "ladders.csv", "--json", "out.json", "--jobs", "1", folder=tmp_path)
    assert "1 rows not simulated: its client keeps 128" in out and "no recipe for of my own; write one" in out
    assert out.splitlines()[-1] == "simulated 0 of 2 rows"
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert outcome["rows"] == [] and sum(outcome["not_simulated"].values()) == 2
    assert "--ladder" in research("ladders", "ladders.csv", "--ladder", "none such", folder=tmp_path, code=1)


RECIPE = """\
[[setups]]
ladder = "of my own"
runs = ["a"]
arms = ["b"]
text = "by hand"
load = {stages = "2x4", question = 200, output = 4}
[setups.scenario]
model = "llama-3.2-1b"
gpu = "h200"
"""


def test_a_ladder_of_ones_own_needs_a_file_of_recipes(tmp_path):
    (tmp_path / "ladders.csv").write_text(TABLE)
    (tmp_path / "mine.toml").write_text(RECIPE)
    asked = ("ladders", "ladders.csv", "--jobs", "1", "--arm", "b", "--ladder", "own",
             "--recipes", "mine.toml")
    assert research(*asked, folder=tmp_path).splitlines()[-1] == "simulated 1 of 1 rows"
    (tmp_path / "mine.toml").write_text(RECIPE.replace("2x4", "two"))
    out = research(*asked, folder=tmp_path, code=1)
    assert "mine.toml" in out and "stages" in out and "RATExSECONDS" in out
    (tmp_path / "mine.toml").write_text(RECIPE.replace("load = ", "lode = "))
    assert "lode" in research(*asked, folder=tmp_path, code=1)

"""`ksim validate ladders`, as a user meets it."""

import json

from tests.cli.command import ksim

TABLE = """\
ladder,run,arm,stage,rate_target_rps,req_s
pd-multi-tier-gpt-oss-120b-h200,w1-random,pd_multi_tier,rate,45,44
of my own,a,b,rate,2,2
"""


def test_ladders_that_are_not_simulated_are_counted_with_reasons(tmp_path):
    (tmp_path / "ladders.csv").write_text(TABLE)
    out = ksim("validate", "ladders", "ladders.csv", "--json", "out.json", "--jobs", "1", folder=tmp_path)
    assert "1 rows not simulated: a KV cache in host memory" in out and "no recipe for this ladder" in out
    assert out.splitlines()[-1] == "simulated 0 of 2 rows"
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert outcome["rows"] == [] and sum(outcome["not_simulated"].values()) == 2
    assert "--ladder" in ksim("validate", "ladders", "ladders.csv", "--ladder", "none such", folder=tmp_path, code=1)

"""`ksim validate autoscalers`: files of cases read and replayed, and what is said of those that are wrong."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ksim.cli.validate import app
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.validation import autoscalers
from ksim.validation.autoscalers.hpa_series import differences
from ksim.validation.cases import load_json

GOLDEN = Path(__file__).parents[1] / "golden" / "autoscalers"
CASE = {"name": "one", "part": "rolling_update", "replicas": 4, "max_surge": "25%", "max_unavailable": 0,
        "expect": {"surge": 1, "most_pods": 5}}


@pytest.fixture
def file(tmp_path):
    def write(*cases):
        path = tmp_path / "cases.json"
        path.write_text(json.dumps({"meta": {}, "cases": cases}))
        return path

    return write


def test_the_last_line_counts_exact_cases(file, tmp_path):
    wrong = {**CASE, "name": "two", "expect": {"surge": 2}}
    result = CliRunner().invoke(app, ["autoscalers", str(file(CASE, wrong)), "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 1 and result.output.splitlines()[-1] == "exact cases: 1 of 2"
    assert "surge" in result.output
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert (outcome["cases"], outcome["exact"]) == (2, 1)
    assert outcome["failures"]["two"] == {"step": None, "key": "surge", "expected": 2, "got": 1}
    only = CliRunner().invoke(app, ["autoscalers", str(file(CASE, wrong)), "--case", "one"])
    assert only.exit_code == 0 and only.output.splitlines()[-1] == "exact cases: 1 of 1"


def test_a_wrong_decision_at_a_step_is_found():
    """The first step that differs is told, with what was decided."""
    table = load_json(GOLDEN / "hpa_series.json.gz")
    case = next(case for case in table["cases"] if case["name"] == "plain_burst")
    steps = [*case["steps"]]
    steps[3] = {**steps[3], "replicas": 99}
    found = next(differences({**case, "steps": steps}, {}))
    assert (found.step, found.key, found.expected, found.got) == (3, "replicas", 99, case["steps"][3]["replicas"])


@pytest.mark.parametrize(("content", "said"), [
    ("{}", "is no file of autoscalers' cases"), ("[]", "holds no table"), ("{", "is not valid JSON"),
    ('{"cases": [{}]}', "it has no name"), ('{"cases": [{"name": "a"}]}', "has none of ticks"),
    ('{"cases": [{"name": "a", "part": "b"}]}', "part 'b' is none of"),
    ('{"cases": [{"name": "a", "part": "rolling_update"}]}', "a: cannot be replayed: KeyError"),
    ('{"cases": [{"name": "a", "ticks": [], "config": {"mode": "x"}, "capabilities": {}}]}', "mode"),
])
def test_a_file_of_no_cases_is_told(tmp_path, content, said):
    (path := tmp_path / "x.json").write_text(content)
    with pytest.raises(ConfigError) as error:
        autoscalers.validate(path)
    assert said in str(error.value)


def test_an_unknown_case_is_told(file):
    with pytest.raises(UnknownName, match="no case named 'three'"):
        autoscalers.validate(file(CASE), "three")

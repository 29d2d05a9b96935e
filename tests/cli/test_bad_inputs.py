"""Bad inputs as people type them.  Each ends with its exit status, says what is wrong, and writes nothing.

The cases are the tables of `bad_inputs/*.toml`, a file a topic:

    [[case]]
    command = "run trace.csv"             # what follows `ksim`, split as a shell splits it
    says = ["ksim replay trace.csv"]      # words of the message
    exit = 1                              # the default; 2 is what the command line's parser ends with
    files = {"trace.csv" = "a,b\n"}       # files that are there beside s.toml, a good scenario, and t.csv, a good trace
"""

import shlex
import tomllib
from pathlib import Path

import pytest

from tests.cli.command import SCENARIO, TRACE, ksim_here

CASES = [(path.stem, case) for path in sorted((Path(__file__).parent / "bad_inputs").glob("*.toml"))
         for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]]


@pytest.mark.parametrize(("topic", "case"), CASES, ids=[f"{topic}: {case['command']}" for topic, case in CASES])
def test_bad_input_ends_with_one_clear_message(topic, case, tmp_path):
    for name, text in {"s.toml": SCENARIO, "t.csv": TRACE, **case.get("files", {})}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    before = _content(tmp_path)
    outcome = ksim_here(*shlex.split(case["command"]), folder=tmp_path)
    assert outcome.status == case.get("exit", 1), outcome.stderr or outcome.stdout
    printed = " ".join(outcome.stderr.split())  # the parser's messages come in a box of lines
    for words in case["says"]:
        assert words in printed
    if outcome.status == 1:
        assert outcome.stderr.startswith("ksim: ") and outcome.stderr.count("\n") == 1
    assert _content(tmp_path) == before


def _content(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*") if "__pycache__" not in path.parts}

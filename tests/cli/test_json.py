"""`--json`: every command that prints a table has it, and `-` leaves standard output to the JSON."""

import json
import re
from pathlib import Path

import pytest
import typer

from ksim.cli import app
from ksim.cli.flags import as_json
from tests.cli.command import SCENARIO, TRACE, ksim_here

#: What the page of commands says of JSON, below its tables.
PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8").partition("## Outcomes as JSON")[2]
#: Commands that print no table, and why.
WITHOUT = {
    ("new",): "writes a scenario, and says where",
    ("gpu", "new"): "writes the file of a GPU", ("report",): "writes a page, and says where",
    ("serve",): "runs until it is stopped",
    ("export",): "prints what another program reads", ("import",): "prints a scenario",
}
#: Cheap examples, and the keys of what they print; the page names all of them.
STEP = "--model llama-3.2-1b --gpu h200 --decode 2x100"
EXAMPLES = {
    "list": "kinds", "list gpus": "kind entries", "list routers": "kind entries", "list grids": "kind entries",
    "list templates": "kind entries", "list drafters": "kind entries",
    f"step {STEP}": "model gpu gpus data_parallel_size decodes prompt_chunks tokens stages",
    "collectives --gpu h200 --sizes 1024": "messages",
    "trace t.csv": "requests arrivals prompt output total ledger",
    "run s.toml --explain-defaults": "pools",
    "gpu points -o p.csv --gpu h200 --budget 2 --families gemm": "gpu points_file seconds families",
}


def leaves(command, path=()):
    """The commands that run something, by the words that call them."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield path, command
    for name, member in inner.items():
        if not member.hidden:  # those are old names
            yield from leaves(member, (*path, name))


COMMANDS = {path: command for path, command in leaves(typer.main.get_command(app)) if path not in WITHOUT}


def strict(text):
    """*text* as JSON without NaN and Infinity, which are no JSON."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_that_prints_a_table_has_json_and_a_line_on_the_page(path):
    options = {name: option for option in COMMANDS[path].params for name in option.opts}
    assert "--json" in options, f"take `output.JsonFile`, or say in WITHOUT why `ksim {' '.join(path)}` has no table"
    assert options["--json"].metavar == "FILE" and "docs/cli.md" in options["--json"].help
    named = f"ksim {' '.join(path)}" if path[0] != "validate" else path[-1]
    assert re.search(rf"^\| .*`(ksim validate )?{re.escape(named)}`", PAGE, re.MULTILINE)


@pytest.mark.parametrize("words", EXAMPLES)
def test_standard_output_has_the_json_alone(words, tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO)
    (tmp_path / "t.csv").write_text(TRACE)
    outcome = ksim_here(*words.split(), "--json", "-", folder=tmp_path)
    assert outcome.status == 0, outcome.stderr
    content = strict(outcome.stdout)
    assert [*content] == EXAMPLES[words].split()
    assert all(f"`{key}`" in PAGE for key in content)


def test_a_file_gets_what_standard_output_would_get_and_the_table_is_printed(tmp_path):
    printed = ksim_here("list", "grids", "--json", "-", folder=tmp_path).stdout
    shown = ksim_here("list", "grids", "--json", "g.json", folder=tmp_path).stdout
    assert (tmp_path / "g.json").read_text(encoding="utf-8") == printed
    assert shown == ksim_here("list", "grids", folder=tmp_path).stdout != ""


def test_a_run_prints_its_summary_and_says_the_rest_on_standard_error(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO)
    outcome = ksim_here("run", "s.toml", "-o", "out", "--no-plots", "--no-trace", "--json", "-", folder=tmp_path)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert strict(outcome.stdout) == {**summary, "remarks": []}
    assert outcome.stderr == "written to out\n"


def test_a_run_whose_requests_were_all_refused_still_writes_its_json(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO.replace("8192", "16"))
    outcome = ksim_here("run", "s.toml", "--json", "-", folder=tmp_path)
    assert outcome.status == 1 and strict(outcome.stdout)["completed"] == 0


@pytest.mark.parametrize("words", [("model", "llama-3.2-1b", "--json"), ("model", "--json", "llama-3.2-1b"),
                                   ("model", "llama-3.2-1b", "--json", "--tp", "1"),
                                   ("model", "llama-3.2-1b", "--json", "-")])
def test_json_of_a_model_needs_no_file_as_in_the_first_releases(words, tmp_path):
    assert strict(ksim_here(*words, folder=tmp_path).stdout)["model"] == "llama-3.2-1b"


def test_what_is_no_number_is_null():
    assert strict(as_json({"a": float("nan"), 1: [float("inf"), 2.5, "x", None, True]})) == {
        "a": None, "1": [None, 2.5, "x", None, True]}

"""Every command's help says what each of its arguments and options is."""

import re
import shlex

import pytest
import typer

import ksim
from ksim.cli import app
from ksim.cli.flags import OF_RUNS
from ksim.cli.help import HEADINGS
from ksim.foundation.catalog import TRUST
from ksim.foundation.keys import keys
from ksim.specs.settings import EngineSettings
from tests.cli.command import SCENARIO, TRACE, ksim_here


def commands(command, path=()):
    """The commands under *command*, by the words that call them."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
each_command = pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(("ksim", *path)))


@each_command
def test_help_is_for_people(path, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = ksim_here(*path, "--help", folder=tmp_path)
    assert shown.status == 0
    assert not re.search(r"Factory\(|<\w+ object|<function|<lambda>|\b0x[0-9a-f]+|NOTHING|None\b", shown.stdout)


@each_command
def test_everything_has_a_help_text(path):
    assert COMMANDS[path].help
    silent = [each.name for each in COMMANDS[path].params if not getattr(each, "help", "")]
    assert silent == []


def test_flags_of_the_engine_say_what_its_keys_are(tmp_path):
    flags = {each.name: each.help for each in COMMANDS["replay",].params}
    for key in keys(EngineSettings):
        assert flags[key.name].startswith(key.text)
    assert flags["scheduling_policy"].endswith("Default: fcfs.")
    assert flags["enable_chunked_prefill"].endswith("Default: true.")


def test_a_flag_that_takes_numbers_takes_several(tmp_path):
    priced = ksim_here("step", "--model", "llama-3.2-1b", "--gpu", "h200", "--decode", "3x10", "--oracle", "roofline",
                       "--cudagraph-capture-sizes", "1", "--cudagraph-capture-sizes", "4", folder=tmp_path)
    assert priced.status == 0, priced.stderr


def test_the_version_is_the_packages(tmp_path):
    assert ksim_here("--version", folder=tmp_path).stdout == f"ksim {ksim.__version__}\n"


def test_every_command_stands_under_a_heading():
    shown = [command.rich_help_panel for path, command in COMMANDS.items() if len(path) == 1 and not command.hidden]
    assert {*shown} == {*HEADINGS}


def test_the_front_stays_small():
    """Commands that do something, and the options that their helps list."""
    shown = [command for command in COMMANDS.values() if not hasattr(command, "commands") and not command.hidden]
    options = [each for command in shown for each in command.params if each.param_type_name == "option"]
    assert len(shown) <= 32 and len([each for each in options if not each.hidden]) <= 542


def test_settings_that_help_leaves_out_change_no_step(tmp_path):
    """`ksim step` takes them from a launch line that is pasted, and costs what it cost without."""
    line = ["step", "--model", "llama-3.2-1b", "--gpu", "h200", "--decode", "3x10", "--oracle", "roofline"]
    pasted = ["--scheduling-policy", "priority", "--admission", "reserve_output", "--no-enable-prefix-caching",
              "--eviction", "lru", "--max-logprobs", "5", "--max-num-active-seqs", "8", "--watermark", "0.1",
              "--long-prefill-token-threshold", "64", "--prefill-schedule-interval", "2", "--no-async-scheduling",
              "--no-scheduler-reserve-full-isl", "--kv-offloading-size", "1"]
    known = {name: option for option in COMMANDS["step",].params for name in (*option.opts, *option.secondary_opts)}
    assert all(known[word].hidden for word in pasted if word.startswith("--"))
    shown = {option.name for option in COMMANDS["replay",].params if not option.hidden}
    assert shown >= OF_RUNS
    assert ksim_here(*line, *pasted, folder=tmp_path) == ksim_here(*line, folder=tmp_path)


@pytest.mark.parametrize(("old", "new"), [
    ("schema -o s.json", "new s.json --schema --force"), ("calibrate none", "gpu calibrate none"),
    ("sweep-kernels -o p.csv --gpu h200 --budget 2", "gpu points -o p.csv --gpu h200 --budget 2")])
def test_an_old_name_works_and_warns(old, new, tmp_path):
    before, now = (ksim_here(*shlex.split(line), folder=tmp_path) for line in (old, new))
    warning, _, rest = before.stderr.partition("\n")
    assert "the old name goes with the next release" in warning and f"`ksim {old.split()[0]}` is called" in warning
    assert (before.status, before.stdout, rest) == (now.status, now.stdout, now.stderr)


@pytest.mark.parametrize("line", [
    "run s.toml", "serve s.toml", "capacity s.toml --slo ttft:p99:1s", "export s.toml",
    "step --model m --gpu h200 --decode 1x1", "roofline --model m --gpu h200 --decode 1x1", "model m",
    "new x.toml --model m", "gpu points -o p.csv --gpu h200 --model m",
    "import 'vllm serve ./m'", "replay t.csv --model m --gpu h200", "trace t.csv --format os:nothing"])
def test_what_asks_for_trust_can_be_given_it(line, tmp_path, monkeypatch):
    monkeypatch.delenv(TRUST, raising=False)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"architectures": ["os:nothing"], "model_type": "os:nothing"}')
    (tmp_path / "s.toml").write_text(SCENARIO.replace('"llama-3.2-1b"', '"m"'))
    (tmp_path / "t.csv").write_text(TRACE)
    refused = ksim_here(*shlex.split(line), folder=tmp_path)
    assert "os:nothing: is not imported" in refused.stderr and "add --trust" in refused.stderr
    for words in ((*shlex.split(line), "--trust"), ("--trust", *shlex.split(line))):
        assert "os:nothing: module os has no nothing" in ksim_here(*words, folder=tmp_path).stderr

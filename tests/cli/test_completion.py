"""Completion: what a shell is offered, asked as bash, zsh and fish ask."""

import os
import subprocess
import sys

import pytest
import typer

from ksim.cli import app, completers
from ksim.cli.completion import _OFFERS, _OFFERS_OF, SCRIPTS, script_path
from ksim.foundation import catalog
from tests.cli.command import ROOT, ksim_here

SPLIT = ROOT / "scenarios" / "fleets" / "split.toml"


def offered(*words, folder=ROOT):
    """What bash puts in place of the last word, which it has cut at = and :."""
    outcome = ksim_here(folder=folder, _KSIM_COMPLETE="complete_bash", COMP_WORDS="\n".join(map(str, words)),
                        COMP_CWORD=str(len(words) - 1))
    assert (outcome.status, outcome.stderr) == (0, "")
    return outcome.stdout.split()


@pytest.mark.parametrize(("words", "some"), [
    (("ksim", "ru"), {"run"}), (("ksim", "validate", "s"), {"schedule", "serving"}),
    (("ksim", "run", "--trace-"), {"--trace-window"}), (("ksim", "list", "g"), {"gpus", "grids", "governors"}),
    (("ksim", "step", "--gpu", "b"), {"b200", "b300"}), (("ksim", "model", "llama-3.2"), {"llama-3.2-1b"}),
    (("ksim", "roofline", "--gpus", "h200,b"), {"h200,b200"}), (("ksim", "new", "--template", ""), {"chat", "pd"}),
    (("ksim", "replay", "t.csv", "--format", "m"), {"mooncake"}),
    (("ksim", "replay", "--scheduling-policy", ""), {"fcfs", "priority"}),
    (("ksim", "replay", "--router", "r"), {"random", "round_robin"}), (("ksim", "tune", "--sampler", ""), {"tpe"}),
    (("ksim", "sweep", "--objective", "p99"), {"p99_ttft_ms"}), (("ksim", "trace", "--time-unit", "m"), {"ms", "min"}),
    (("ksim", "sweep", "--objective", "max", ":", "output"), {"output_throughput"}),
    (("ksim", "capacity", "--slo", "ttft", ":", "p9"), {"p99:", "p90:"}),
    (("ksim", "run", "--set", "se"), {"serve.max_num_seqs=", "serve.kv_transfer_config.", "seed="}),
    (("ksim", "run", "--set", "serve.enable_pre"), {"serve.enable_prefix_caching="}),
    (("ksim", "run", "--set", "router", "="), {"llm_d", "round_robin"}),
    (("ksim", "run", "--set", "router", "=", "l"), {"llm_d", "least_outstanding"}),
    (("ksim", "run", "--set", "workload.synthetic.arrivals.process", "=", "p"), {"poisson"}),
    (("ksim", "run", "--set", "workload.synthetic.prompt.kind", "="), {"fixed", "lognormal"}),
    (("ksim", "sweep", "--over", "gpu", "=", "h100,h2"), {"h100,h200"}),
    (("ksim", "run", SPLIT, "--set", "pools.d"), {"pools.decode.role=", "pools.decode.serve."}),
    (("ksim", "run", SPLIT, "--pool", "d"), {"decode:"}),
    (("ksim", "run", SPLIT, "--pool", "decode", ":", "rol"), {"role="}),
    (("ksim", "run", SPLIT, "--pool", "decode", ":", "role", "=", "p"), {"prefill"}),
    (("ksim", "run", SPLIT, "--pool", "decode", ":", "role", "=", "both,engin"), {"both,engine="}),
    (("ksim", "step", "--model", "=", "qwen3-8"), {"qwen3-8b"}),
])
def test_bash_is_offered(words, some):
    found = offered(*words)
    assert some <= {*found} and len({*found}) == len(found)


@pytest.mark.parametrize("words", [("ksim", "run", ""), ("ksim", "run", "sc"), ("ksim", "run", "s.toml", "-o", ""),
                                   ("ksim", "run", "--set", "nothing.like"), ("ksim", "run", "--set", "router.x.y.z="),
                                   ("ksim", "step", "--gpu", "mine/"), ("ksim", "trace", "./")])
def test_where_nothing_is_offered_the_shell_offers_files(words):
    assert offered(*words) == []


def test_a_single_key_comes_with_its_values_so_that_no_space_follows():
    assert offered("ksim", "run", "--set", "serve.scheduling_pol") == [
        f"serve.scheduling_policy={name}" for name in ("", *catalog.names("scheduling.policies"))]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_are_offered_whole_words(shell):
    outcome = ksim_here(folder=ROOT, _KSIM_COMPLETE=f"complete_{shell}", COMP_WORDS="ksim\nrun\n--set\nrouter=ll",
                        COMP_CWORD="3")
    assert (outcome.status, outcome.stdout) == (0, "router=llm_d\n")


@pytest.mark.parametrize("line", ["", "ksim", "ksim ", "ksim run --set", "ksim run '", 'ksim run "a b', "ksim nothing ",
                                  "ksim run --set =", "ksim run --set :", "ksim run = = =", "ksim run --nothing x"])
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_no_line_makes_completion_fail(line, shell):
    words = line.split(" ")
    outcome = ksim_here(folder=ROOT, _KSIM_COMPLETE=f"complete_{shell}", COMP_WORDS="\n".join(words),
                        COMP_CWORD=str(len(words) - 1))
    assert outcome.status == 0 and outcome.stderr == ""


def test_every_offer_is_for_an_option_that_there_is():
    parameters, commands = set(), [((), typer.main.get_command(app))]
    for path, command in commands:
        parameters |= {(path[-1] if path else "", parameter.name) for parameter in command.params}
        commands += [((*path, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    assert {*_OFFERS} <= {name for _, name in parameters} and {*_OFFERS_OF} <= parameters


def test_names_are_those_of_the_catalogue():
    for folder in ("gpus", "models", "templates", "cluster.routers", "workload.traces", "oracles"):
        assert [*completers._names(folder)] == catalog.choices(folder)


def test_a_tab_imports_nothing_heavy(tmp_path):
    script = "import sys; from ksim.cli import main; sys.argv = ['ksim']; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_KSIM_COMPLETE": "complete_bash",
                   "COMP_WORDS": "ksim\nstep\n--model\nllama", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", script], capture_output=True, check=True,
                          text=True, cwd=tmp_path, env=environment)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "llama-3.1-8b" in done.stdout
    assert not imported & {"numpy", "simpy", "pyarrow", "networkx", "matplotlib", "yaml", "hypothesis", "starlette"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "SHELL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_shown_and_installed_once(shell, home):
    shown = ksim_here("--show-completion", shell, folder=home).stdout
    assert shown == SCRIPTS[shell] and "_KSIM_COMPLETE" in shown
    start = home / f".{shell}rc"
    start.write_bytes(b"# mine, without a line end \xff")
    for _ in range(2):
        said = ksim_here("--install-completion", shell, folder=home).stdout
        assert said.startswith(f"wrote {script_path(shell)}")
    assert script_path(shell).read_text() == shown
    lines = start.read_bytes().splitlines()
    added = [] if shell == "fish" else [b"source '%s'" % bytes(script_path(shell))]
    assert lines == [b"# mine, without a line end \xff", *added]


def test_the_login_shell_is_taken_where_none_is_named(home):
    assert ksim_here("--show-completion", folder=home, SHELL="/usr/bin/zsh").stdout == SCRIPTS["zsh"]
    refused = ksim_here("--install-completion", folder=home)
    assert refused.status == 1 and "name bash, zsh or fish" in refused.stderr and not [*home.iterdir()]
    assert "'tcsh'" in ksim_here("--show-completion", folder=home, SHELL="/bin/tcsh").stderr


def test_a_home_that_cannot_be_written_to_is_said(home):
    (home / ".local").write_text("")
    refused = ksim_here("--install-completion", "bash", folder=home)
    assert refused.status == 1 and "cannot be written" in refused.stderr and refused.stderr.count("\n") == 1

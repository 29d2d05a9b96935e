"""What the README shows works; tests/test_pages.py looks at its links."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

import ksim
from ksim.cli import app
from ksim.views.result import Result
from tests.cli.command import ksim_here

ROOT = Path(ksim.__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: What makes commands short: of an option given twice, the last counts.
SHORT = {"capacity": "--requests 25 --replications 2 --no-model-error", "sweep": "--sample latin:2",
         "plan": "--requests 20 --replications 2 --finalists 1 --over serve.tensor_parallel_size=2"
                 " --over serve.quantization=fp8 --over serve.max_num_batched_tokens=8192",
         "tune": "--trials 2",
         "ranks": "--set workload.synthetic.count=8",
         "autoscalers": "--slots 1 --trials 0 --set workload.synthetic.count=20",
         "routers": "--set workload.synthetic.count=10 --set serve.data_parallel_size=2"}
COMMANDS = [line.partition("  #")[0].strip() for line in README.splitlines() if line.startswith("    ksim ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkout with a trace of few requests, so that runs are short."""
    made = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "scenarios", made / "scenarios")
    for path in (made / "scenarios" / "fleets").glob("*.toml"):
        path.write_text(path.read_text(encoding="utf-8").replace("count = 400", "count = 40"), encoding="utf-8")
    (made / "traces").mkdir()
    lines = (ROOT / "traces" / "conversation.csv").read_text().splitlines(keepends=True)
    (made / "traces" / "conversation.csv").write_text("".join(lines[:26]))
    return made


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """No plots, and one process for studies: they take longer than all else, and have tests of their own."""
    monkeypatch.setattr(Result, "plots", lambda *_: [])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def test_the_readme_answers_sixteen_questions():
    section = README.partition("## Sixteen questions")[2].partition("\n## ")[0]
    questions = re.findall(r"^\*\*(.+\?)\*\*.*\n((?:.*\n)*?)\n((?:    ksim .*\n)+)", section, re.MULTILINE)
    assert len(questions) == 16


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_run(command, folder):
    """In their order: some need what others wrote."""
    name, *words = shlex.split(command.replace("ttft:p99", "ttft:median"))[1:]  # which few requests tell
    done = ksim_here(name, *words, *shlex.split(SHORT.get(name, "")), folder=folder)
    assert done.status == 0, done.stderr
    assert done.stdout.strip()


def test_python_of_the_readme_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code.replace('"count": 200', '"count": 10'), {})
    assert len(re.findall(r"^(?:16|64) \d+\.\d+ \d+\.\d+$", capsys.readouterr().out, re.MULTILINE)) == 2
    assert (folder / "runs" / "mine" / "summary.json").exists()


def test_the_commands_it_mentions_exist():
    known = {each.name for each in app.registered_commands} | {each.name for each in app.registered_groups}
    mentioned = {*re.findall(r"`ksim ([a-z][\w-]*)", README), *(command.split()[1] for command in COMMANDS)}
    assert mentioned <= known
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"`make\s([a-z]+)`", README)} <= {*targets}

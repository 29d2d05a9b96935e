"""Commands and Python of the manual run, page by page, on few requests; tests/test_pages.py reads those left out."""

import os
import re
import shlex
import shutil
import sys
from functools import cache
from itertools import pairwise

import pytest

from tests.cli.command import SCENARIO, ksim_here
from tests.manual import ROOT, shown, words

#: Pages whose commands other tests run, or what plays them.
ELSEWHERE = {"traces.md": "tests/cli/test_traces.py", "gallery.md": "tests/test_gallery.py",
             "einsum.md": "tests/scenario/test_layers_documented.py",
             "testing.md": "tests/testing/test_mutants.py", "README.md": "has none",
             "server.md": "tests/server/test_serve.py",
             "start.md": "below, with what it prints"}
#: Commands that are not run, by what is in them, and what they need or where they run.
NEEDS = {"ksim capacity": "thousands of requests: tests/test_readme.py runs one", "ksim tune": "the same",
         "ksim plan": "the same",
         "ksim validate": "recordings", "ksim serve": "a client: tests/server/test_serve.py",
         "ksim gpu calibrate": "measurements of a GPU", " h200.npz": "such measurements",
         "~/models": "a model of the reader's", "olmo2/config.json": "tests/scenario/test_models_documented.py",
         "fault.toml": "tests/cli/test_explain.py", "--plot costs.png": "tests/cli/test_step_speculation.py",
         "--jobs 4": "processes: tests/simulation/test_parallel_replicas.py",
         "ksim routing": "what an engine returned: tests/cli/test_routing.py",
         "ksim roofline": "tests/cli/test_roofline.py", "ksim gpu points": "tests/cli/test_calibrate.py"}
#: Options that make studies short: of one given twice, the last counts.
SHORT = {"sweep": "--sample latin:2 --repeat 1", "routers": "--routers round_robin --staleness 0 --seeds 1",
         "autoscalers": "--slots 1 --trials 0 --set workload.synthetic.count=20"}
#: The same in Python.
SHORTER = {"repeat=3": "repeat=1", "trials=16": "trials=2", "seeds=3": "seeds=1", ', "prefix_aware"], ': "], ",
           "rate=60": "rate=3", ', "1s"]': "]", "[8, 16, 256]": "[8]", "[1, 2, 4]": "[1]"}
#: Whose Python other tests run.
CODE_ELSEWHERE = {"policies.md": "tests/scheduling/test_policies_documented.py", "capacity.md": "tests/study/capacity",
                  "plan.md": "tests/study/planning"}
#: What pages take for granted.
BEFORE = {"explain.md": [f"ksim run scenario.toml -o runs/{name}" for name in ("mine", "before", "after")]}
README = {part.text for part in shown(ROOT / "README.md")}
#: Commands that answer the same wherever they run.
PURE = ("step", "roofline", "model", "list", "collectives")
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in ELSEWHERE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Scenarios and traces of few requests, and the files that pages take for granted."""
    made = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "scenarios", made / "scenarios")
    cut(made)
    (made / "traces").mkdir()
    for path in (ROOT / "traces").glob("*.[cj]*"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (made / "traces" / path.name).write_text("".join(lines[:5]))
    (made / "scenario.toml").write_text(SCENARIO.replace("count = 12", "count = 20"))
    (made / "config.json").write_bytes((ROOT / "ksim" / "data" / "models" / "llama-3.2-1b.json").read_bytes())
    return made


def cut(folder, most=9):
    """Leave three requests of the synthetic loads in *folder* that have more than *most*."""
    for path in folder.rglob("*.toml"):
        path.write_text(fewer(path.read_text(encoding="utf-8"), most), encoding="utf-8")


def fewer(text, most=9):
    return re.sub(r"^((?:workload\.synthetic\.)?count ?= ?)(\d+)",
                  lambda count: count[0] if int(count[2]) <= most else f"{count[1]}3", text, flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """One process for studies: more take longer to start than such runs take."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_runs(page, checkout, tmp_path, monkeypatch):
    shutil.copytree(checkout, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # whose launch lines a page imports
    if re.search(r"^    ksim (new|import) .*scenario\.toml", page.read_text(encoding="utf-8"), re.MULTILINE):
        (tmp_path / "scenario.toml").unlink()  # it makes its own
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # the plug-in of another page
    for command in BEFORE.get(page.name, ()):
        run(command, tmp_path)
    names = {}
    for part in shown(page):
        if part.kind == "file":
            (tmp_path / part.name).write_text(fewer(part.text), encoding="utf-8")
        elif part.kind == "code" and page.name not in CODE_ELSEWHERE:
            exec(shorter(part.text), names)
        elif part.kind == "command" and not any(need in part.text for need in NEEDS):
            run(part.text, tmp_path)
            if part.text.startswith(("ksim new", "ksim import")):
                cut(tmp_path, most=20)


def run(command, folder):
    name, *rest = words(command)
    if name in PURE and not {"-o", "--json", "--plot"} & {*rest} and not re.search(r"\.(toml|json|npz)\b", command):
        return answered(command) if command not in README else ""  # tests/test_readme.py runs it
    return ended(name, few(rest), folder)


@cache
def answered(command):
    """What a pure command prints: pages show some of them more than once."""
    name, *rest = words(command)
    return ended(name, rest, ROOT)


def ended(name, rest, folder):
    quick = ["--no-trace", "--no-plots"] if name == "run" and "-o" in rest else shlex.split(
        SHORT.get(name, "") if "--front" not in rest or "--over" in rest else "")  # a study is there already
    done = ksim_here(name, *rest, *quick, folder=folder)
    assert done.status == 0, f"ksim {shlex.join([name, *rest])}\n{done.stderr}"
    return done.stdout


def few(rest):
    """The words of a command with few requests, and two values at most for each key of a study."""
    return [fewer(word) if before != "--over" else ",".join(word.split(",")[:2])
            for before, word in pairwise(["", *rest])]


def shorter(code):
    for long, short in SHORTER.items():
        code = code.replace(long, short)
    return code


def test_the_report_in_five_minutes_is_what_is_printed(tmp_path):
    """But for the lines between."""
    page = ROOT / "docs" / "start.md"
    printed = "".join(run(part.text, tmp_path) for part in shown(page) if part.kind == "command")
    lines = {" ".join(line.split()) for line in printed.splitlines()}
    excerpts = re.findall(r"```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert {" ".join(line.split()) for text in excerpts for line in text.splitlines() if line} <= lines

"""Every notebook runs from top to bottom, and is kept with what its cells show."""

import contextlib
import io
import os
import re
import shutil
import sys
import types
from pathlib import Path

import matplotlib
import nbformat
import pytest

from ksim.workload.reading import read

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
AGAIN = "run `python -m benchmarks.notebooks`"

#: What cells ask for, and what they are given here, to be quick.
SHORTER = {"least = 30, 120": "least = 0.25, 6", "np.geomspace(1 / 64, 4, 97)": "np.geomspace(0.2, 0.8, 2)",
           '"count": 200': '"count": 20', "replications, trials = 200, 4, 8": "replications, trials = 40, 2, 2",
           "[512, 8192]": "[8192]", '"count": 20_000': '"count": 30', "repeat=6": "repeat=2",
           "slots=24, trials=6": "slots=1, trials=0, jobs=1",
           '"synthetic": {"count": 60': '"synthetic": {"count": 3', "rates = [4, 8, 12]": "rates = [8]",
           '"workload.synthetic.count": 30': '"workload.synthetic.count": 4',
           "requests = 1000": "requests = 12", '"data_parallel_size": 8': '"data_parallel_size": 2',
           '["round_robin", "least_outstanding", "consistent_hash", "sglang_cache_aware", "prefix_aware", "mooncake",\n'
           '         "llm_d", "dynamo_kv", "vllm_dp_balancer"]': '["round_robin", "llm_d"]',
           'staleness=[0, "200ms", "2s"]': 'staleness=[0, "2s"]',
           '"serve.kv_offloading_size": 200': '"serve.kv_offloading_size": 2',
           '["round_robin", "sglang_cache_aware", "prefix_aware", "llm_d", "mooncake"]': '["round_robin"]'}

each_notebook = pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def shorter(source):
    for long, short in SHORTER.items():
        source = source.replace(long, short)
    return source


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def words(text):
    """*text* but for its figures, and what aligns them."""
    return [re.findall(r"[A-Za-z_/]{2,}", line) for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path):
    """That of the notebooks in a checkout with a trace of few requests."""
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    (tmp_path / "traces").mkdir()
    (tmp_path / "notebooks").mkdir()
    lines = (ROOT / "traces" / "conversation.csv").read_text().splitlines(keepends=True)
    (tmp_path / "traces" / "conversation.csv").write_text("".join(lines[:26]))
    return tmp_path / "notebooks"


@each_notebook
def test_a_notebook_runs_and_prints_what_it_shows(path, folder, monkeypatch):
    """In this process and on few requests, which is much quicker; figures differ, and words do not."""
    main = types.ModuleType("__main__")  # where plug-ins are that a notebook defines
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # processes take longer to start than such runs take
    matplotlib.use("agg")
    for cell in code_cells(path):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(shorter(cell.source), f"{path.name}: {cell.id}", "exec"), main.__dict__)
        assert words(out.getvalue()) == words(printed(cell)), AGAIN


def test_a_trace_that_a_notebook_draws_is_read_whole(tmp_path):
    """As long as the notebook has it, and not only the few requests that its other cells are given here."""
    source = code_cells(NOTEBOOKS / "06-who-gets-the-request.ipynb")[0].source
    names = {}
    exec(source[:source.index("\nfolder = ")], names)
    for seed in range(3):
        rows = read(names["drawn"](tmp_path / "drawn.jsonl", seed), "mooncake")
        assert sum(1 for _ in rows) == names["requests"] == 1000


@each_notebook
def test_a_notebook_is_kept_with_its_outputs(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)], AGAIN
    shown = [output for cell in cells for output in cell.outputs]
    assert len(shown) >= len(cells) / 3 and not any(output.output_type == "error" for output in shown)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"0x[0-9a-f]{6}|/tmp/|/home/|Warning", text) and len(text) < 150_000


def test_what_is_made_shorter_is_there():
    sources = [cell.source for path in NOTEBOOKS.glob("*.ipynb") for cell in code_cells(path)]
    assert all(any(long in source for source in sources) for long in SHORTER)


def test_notebooks_leave_nothing_in_their_folder():
    assert {path.suffix for path in NOTEBOOKS.iterdir() if not path.name.startswith(".")} == {".ipynb"}

"""`ksim tune`, as a user meets it: what it prints, and what interrupts and kills leave behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.cli.command import ROOT, SCENARIO, ksim, ksim_here

#: From the sixth run on, kernels are not priced, but waited for, until there is a file that says go.
ORACLE = """
import os, time
from pathlib import Path
LINES = Path("out/runs.jsonl")
class Waits:
    def seconds(self, kernel, gpu):
        if not Path("go").exists() and LINES.exists() and LINES.read_text().count("\\n") >= 5:
            os.write(1, b"waiting\\n")
            time.sleep(3600)
        return 1e-5
"""
TUNE = ("tune", "s.toml", "--minimize", "median_e2el_ms", "--space", "serve.max_num_seqs=1,2,4,8", "--space",
        "serve.max_num_batched_tokens=64:2048:log", "--set", "oracle=mine:Waits", "--trials", "12", "--round", "4",
        "--jobs", "1", "-o", "out")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "mine.py").write_text(ORACLE, encoding="utf-8")
    return tmp_path


def heed_interrupts():
    """Shells have what they run in the background ignore them, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stopped(folder, number):
    """What `ksim tune` printed until that signal ended it in the middle of its second round, and its status."""
    with subprocess.Popen([sys.executable, "-m", "ksim", *TUNE], cwd=folder, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
                          preexec_fn=heed_interrupts) as command:  # noqa: PLW1509 - pytest has no threads
        try:
            line = command.stdout.readline()
            assert line == "waiting\n", line + command.stderr.read()
            command.send_signal(number)
            out, error = command.communicate()
        finally:
            command.kill()
    return command.returncode, out, error


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of a tuning that nothing interrupted, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    for name, text in (("s.toml", SCENARIO), ("mine.py", ORACLE), ("go", "")):
        (folder / name).write_text(text, encoding="utf-8")
    out = ksim(*TUNE, "--json", "t.json", folder=folder)
    content = json.loads((folder / "t.json").read_text())
    assert content["best"] in [trial["point"] for trial in content["trials"] if trial["on_front"]]
    assert len(content["trials"]) == 12 and content["objectives"] == ["median_e2el_ms"]
    return out, (folder / "out" / "runs.parquet").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGKILL, marks=pytest.mark.explore), signal.SIGINT])
def test_a_tuning_that_was_ended_goes_on_to_the_same_table(folder, whole, number):
    status, out, error = stopped(folder, number)
    if number == signal.SIGINT:
        assert (status, error) == (130, "ksim: interrupted; 5 of 12 runs were done; they are kept, and --resume goes"
                                        " on\n")
        assert "best" in out and (folder / "out" / "best.toml").is_file()
        table = parquet.read_table(folder / "out" / "runs.parquet").to_pydict()
        assert table["status"] == ["ok"] * 5 + ["not run"] * 3
    (folder / "go").touch()
    assert ksim(*TUNE, "--resume", folder=folder) == whole[0]
    assert (folder / "out" / "runs.parquet").read_bytes() == whole[1]
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "best.toml", "runs.parquet", "scenario.toml", "study.db", "study.json"]


def test_the_best_trials_come_first(whole):
    lines = whole[0].splitlines()
    assert lines[1].split() == ["#", "trial", "max_num_seqs", "max_num_batched_tokens", "median_e2el_ms"]
    assert lines[3].split()[0] == "1" and "best" in lines[3]
    assert "12 trials" in whole[0] and "written to out; the best is out/best.toml" in whole[0]


def test_a_tuning_without_a_trial_that_counts_says_so(folder):
    outcome = ksim_here(*TUNE[:-2], "--set", "oracle=roofline", "--trials", 3, "--subject-to", "mean_ttft_ms<0.001",
                        folder=folder)
    assert outcome.status == 1
    assert outcome.stderr.startswith("ksim: none of 3 trials counts; trial ") and "mean_ttft_ms is " in outcome.stderr
    assert not Path(folder / "out").exists()


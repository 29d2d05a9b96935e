"""`ksim sweep`, as a user meets it: one table, however it is computed, and whatever ends it."""

import json
import os
import signal
import subprocess
import sys

import pytest
from pyarrow import parquet

from tests.cli.command import ROOT, SCENARIO, ksim, ksim_here

#: One of these points cannot be built, another cannot take the longest requests.
OVER = ("--over", "serve.max_num_seqs=1,2,16", "--over", "serve.max_num_batched_tokens=8192,8", "--set",
        "oracle=roofline", "--repeat", 2)
#: An oracle that waits, in the points that say so, until there is a file.
WAITS = """
import os, time
from attrs import frozen
@frozen
class Waits:
    when: bool = False
    def seconds(self, kernel, gpu):
        while self.when and not os.path.exists("go"):
            os.write(1, b"waiting\\n")
            time.sleep(3600)
        return 1e-5
@frozen
class Interrupts:
    when: bool = False
    def seconds(self, kernel, gpu):
        if self.when and not os.path.exists("go"):
            raise KeyboardInterrupt
        return 1e-5
"""


def values(name, *when):
    return ("--over", f"oracle={','.join(f'{{name={name!r}, when={str(each).lower()}}}' for each in when)}",
            "--over", "serve.max_num_seqs=2,4")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one process wrote and printed."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "s.toml").write_text(SCENARIO, encoding="utf-8")
    outcome = ksim_here("sweep", "s.toml", *OVER, "--jobs", 1, "-o", "out", "--json", "s.json", folder=folder)
    assert outcome.status == 0, outcome.stderr
    return folder, outcome


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "mine.py").write_text(WAITS, encoding="utf-8")
    return tmp_path


def table(folder, name="out"):
    return parquet.read_table(folder / name / "runs.parquet").to_pylist()


def test_the_json_has_settings_means_and_intervals_of_every_point(found):
    folder, _ = found
    content = json.loads((folder / "s.json").read_text())
    assert [*content] == ["title", "directory", "runs", "points"] and content["runs"] == 12
    first, *_, last = content["points"]
    assert first["settings"] == {"serve.max_num_seqs": 1, "serve.max_num_batched_tokens": 8192}
    assert first["half_widths"]["p99_ttft_ms"] > 0 and first["summary"]["p99_ttft_ms"] > 0
    assert "must be greater than" in last["problem"] and last["summary"] is None


def test_all_runs_are_in_one_table_and_the_best_are_shown(found):
    folder, outcome = found
    rows = table(folder)
    assert [(row["point"], row["replication"]) for row in rows] == [
        (point, number) for point in range(1, 7) for number in range(2)]
    assert [row["status"] for row in rows] == ["ok"] * 10 + ["failed"] * 2
    assert "must be greater than or equal to max_num_seqs (16)" in rows[-1]["problem"]
    assert rows[0]["serve.max_num_seqs"] == 1 and rows[0]["p99_ttft_ms"] > 0
    for words in ("best by", "joules_per_million_tokens", " ± ", "12 runs of 6 points, 2 replications of each",
                  "written to out/runs.parquet; `ksim sweep out --front` shows"):
        assert words in outcome.stdout
    assert outcome.stderr == ("ksim: 2 runs failed: max_num_batched_tokens: (8) must be greater than or equal to"
                              " max_num_seqs (16)\n")
    assert json.loads((folder / "out" / "study.json").read_text())["command"] == {
        "over": {"serve.max_num_seqs": [1, 2, 16], "serve.max_num_batched_tokens": [8192, 8]}, "sample": None,
        "repeat": 2}


def test_the_scenario_of_a_row_runs_to_the_same_numbers(found):
    folder, _ = found
    row = table(folder)[3]
    (folder / "row.toml").write_text(row["scenario"], encoding="utf-8")
    ksim("run", "row.toml", "-o", "row", "--quiet", "--no-plots", "--no-trace", folder=folder)
    summary = json.loads((folder / "row" / "summary.json").read_text())
    assert {key: row[key] for key in summary if key in row} == {key: summary[key] for key in summary if key in row}


def test_the_bytes_do_not_depend_on_the_number_of_processes(found):
    folder, _ = found
    ksim("sweep", "s.toml", *OVER, "--jobs", 2, "-o", "two", folder=folder)
    for name in ("runs.parquet", "study.json", "scenario.toml"):
        assert (folder / "two" / name).read_bytes() == (folder / "out" / name).read_bytes()


def test_the_front_of_a_finished_sweep_is_shown_without_a_run(found, monkeypatch):
    folder, _ = found
    monkeypatch.setattr("ksim.study.experiment.play", None)
    out = ksim("sweep", "out", "--front", "--objective", "median_e2el_ms", "--objective", "joules_per_million_tokens",
               "--require", "completed>=12", "-o", "front", "--json", "p.json", folder=folder)
    assert "of 6 points are on the front" in out and "2 of 2 replications: max_num_batched_tokens" in out
    points = json.loads((folder / "p.json").read_text())["points"]
    rows = [row for row in table(folder) if row["serve.max_num_seqs"] == points[0]["settings"]["serve.max_num_seqs"]
            and row["serve.max_num_batched_tokens"] == 8192]
    assert points[0]["summary"]["median_e2el_ms"] == pytest.approx(sum(row["median_e2el_ms"] for row in rows) / 2)
    assert len(list((folder / "front" / "front").iterdir())) == sum(point["on_front"] for point in points)
    message = ksim("sweep", "out", "--front", "--over", "seed=1,2", folder=folder, code=1)
    assert message.startswith("ksim: --over: is for a scenario; the runs of a study are compared as they are")


def test_a_sweep_of_a_sample_with_ranges(folder):
    ksim("sweep", "s.toml", "--over", "serve.max_num_seqs=4:64:log", "--over", "power.cap=400:700 W", "--over",
         "gpu=h100,h200", "--sample", "latin:4", "--jobs", 1, "-o", "out", "--set", "oracle=roofline", folder=folder)
    rows = table(folder)
    assert len(rows) == 4 and sorted(row["gpu"] for row in rows) == ["h100"] * 2 + ["h200"] * 2
    assert all(4 <= row["serve.max_num_seqs"] <= 64 and 400 <= int(row["power.cap"].removesuffix(" W")) <= 700
               for row in rows)


def test_what_had_ended_before_ctrl_c_is_kept_and_resume_goes_on(folder):
    words = ("sweep", "s.toml", *values("mine:Interrupts", False, True), "--jobs", 1, "-o", "out")
    stopped = ksim_here(*words, folder=folder)
    assert (stopped.status, stopped.stderr) == (
        130, "ksim: interrupted; 2 of 4 runs are kept; --resume goes on with the others\n")
    assert [row["status"] for row in table(folder)] == ["ok", "ok", "not run", "not run"]
    assert "not run" in ksim("sweep", "out", "--front", folder=folder)
    (folder / "go").touch()
    assert "4 runs of 4 points" in ksim(*words, "--resume", folder=folder)
    assert "4 runs of 4 points" in ksim(*words, "--resume", folder=folder)  # with nothing left
    ksim(*words[:-1], "whole", folder=folder)
    assert (folder / "out" / "runs.parquet").read_bytes() == (folder / "whole" / "runs.parquet").read_bytes()
    assert ksim(*words, folder=folder, code=1) == (
        "ksim: out: holds an earlier study; --resume goes on with it, --force replaces it\n")
    message = ksim(*words, "--repeat", 2, "--resume", folder=folder, code=1)
    assert "out: cannot be resumed: its repeat was 1, and now is 2" in message
    message = ksim(*words, "--set", "serve.max_model_len=4096", "--resume", folder=folder, code=1)
    assert "in its scenario, serve.max_model_len was 8192, and now is 4096" in message


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(("number", "status"), [
    (signal.SIGKILL, -9), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.explore)], ids=["kill", "term"])
def test_a_killed_sweep_goes_on_to_the_same_bytes(number, status, folder):
    words = ("sweep", "s.toml", *values("mine:Waits", False, True), "--jobs", "2", "-o", "out")
    command = subprocess.Popen([sys.executable, "-m", "ksim", *words], cwd=folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    for _ in range(2):
        assert command.stdout.readline() == "waiting\n", command.stderr.read()
    command.send_signal(number)
    _, error = command.communicate()  # waits for all processes, as each holds the pipe
    assert command.returncode == status
    if number == signal.SIGTERM:
        assert error == "ksim: terminated; 2 of 4 runs are kept; --resume goes on with the others\n"
    lines = (folder / "out" / "runs.jsonl").read_bytes()
    assert lines.count(b"\n") == 2
    (folder / "out" / "runs.jsonl").write_bytes(lines + lines[:100])  # as if it had been writing
    (folder / "go").touch()
    words = (*words[:-3], "1")
    ksim(*words, "-o", "out", "--resume", folder=folder)
    ksim(*words, "-o", "whole", folder=folder)
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["runs.parquet", "scenario.toml", "study.json"]
    assert (folder / "out" / "runs.parquet").read_bytes() == (folder / "whole" / "runs.parquet").read_bytes()


def test_a_sweep_in_which_every_run_fails_is_kept_and_ends_with_the_reasons(folder):
    outcome = ksim_here("sweep", "s.toml", "--over", "serve.tensor_parallel_size=5,7", "-o", "out", "--jobs", 1,
                        folder=folder)
    assert outcome.status == 1 and outcome.stderr.endswith("ksim: none of 2 runs went well\n")
    assert "ksim: 1 run failed: tensor_parallel_size: 5 does not divide 32 attention heads" in outcome.stderr
    assert [row["status"] for row in table(folder)] == ["failed"] * 2

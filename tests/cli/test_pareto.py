"""`ksim pareto`, as a user meets it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from ksim.cli import app
from ksim.foundation.errors import KsimError
from ksim.studies.scenario import Scenario
from ksim.studies.simulation import simulate

from .test_cli import ROOT, SCENARIO, _heed_interrupts, ksim

#: One of these points cannot be built, another cannot take the longest requests.
OVER = ("--over", "serve.max_num_seqs=1,2,16", "--over", "serve.max_num_batched_tokens=8192,8", "--over",
        "serve.max_model_len=8192,300")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes wrote and printed."""
    folder = tmp_path_factory.mktemp("pareto")
    (folder / "s.toml").write_text(SCENARIO, encoding="utf-8")
    out = ksim("pareto", "s.toml", *OVER, "--set", "oracle=roofline", "--jobs", 2, "-o", "out", "--json", "p.json",
               folder=folder)
    return folder, out


def rows(folder):
    with (folder / "out" / "points.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_point_is_listed_the_front_first(found):
    folder, out = found
    points = rows(folder)
    assert len(points) == 12 and [int(point["point"]) for point in points] == [*range(1, 13)]
    leading = [point for point in points if point["on_front"] == "true"]
    assert leading == points[: len(leading)] and f"{len(leading)} of 12 points are on the front" in out
    energy = [float(point["joules_per_output_token"]) for point in leading]
    assert energy == sorted(energy)
    for point in points[len(leading):]:
        assert bool(point["beaten_by"]) is not bool(point["problem"])
    problems = [point["problem"] for point in points]
    assert sum("rejected of 12 requests: " in problem for problem in problems) == 5 and \
        sum("max_num_batched_tokens" in problem for problem in problems) == 2
    assert all(problem in out for problem in problems)


def test_the_front_is_there_as_scenarios_that_give_the_same_numbers(found):
    folder, _ = found
    leading = [point for point in rows(folder) if point["on_front"] == "true"]
    files = sorted((folder / "out" / "front").iterdir())
    assert len(files) == len(leading)
    assert files[0].name.startswith("01-max_num_seqs=")
    known = json.loads((folder / "p.json").read_text())["points"]
    for file, point in zip(files, known, strict=False):
        assert simulate(Scenario.read(file)).summary == point["summary"]


def test_all_numbers_are_there_as_json_and_as_a_figure(found):
    folder, _ = found
    content = json.loads((folder / "p.json").read_text())
    assert content["objectives"] == ["joules_per_output_token", "median_e2el_ms"]
    assert content["points"][0]["settings"].keys() == {
        "serve.max_num_seqs", "serve.max_num_batched_tokens", "serve.max_model_len"}
    for point, row in zip(content["points"], rows(folder), strict=True):
        assert point["on_front"] is (row["on_front"] == "true") and point["problem"] == row["problem"]
        assert not row["median_e2el_ms"] or point["summary"]["median_e2el_ms"] == float(row["median_e2el_ms"])
    assert (folder / "out" / "pareto.png").stat().st_size > 10_000


def run(*words):
    """The same with s.toml within this one process; returns what it printed, or raises."""
    result = CliRunner().invoke(app, ["pareto", "s.toml", *map(str, words), "--jobs", "1"])
    if isinstance(result.exception, KsimError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path


def test_one_process_finds_the_same_as_two(found, monkeypatch):
    folder, out = found
    monkeypatch.chdir(folder)
    alone = run(*OVER, "--set", "oracle=roofline", "--json", "alone.json")
    assert out.removesuffix("written to out\n") == alone
    assert (folder / "alone.json").read_bytes() == (folder / "p.json").read_bytes()


def test_objectives_may_be_any_and_many_and_points_a_sample(scenario):
    out = run("--over", "serve.max_num_seqs=1,2,4,8", "--sample", 2, "--set", "oracle=roofline", "-o", "out",
              "--objective", "max:output_throughput", "--objective", "median_ttft_ms", "--objective", "p99_tpot_ms")
    assert "max:output_throughput" in out and "best" in out
    assert len(rows(scenario)) == 2 and "p99_tpot_ms" in rows(scenario)[0]
    run("--over", "seed=1", "--set", "oracle=roofline", "-o", "out", "--force")  # in its place
    assert len(rows(scenario)) == 1


@pytest.mark.parametrize(("words", "message"), [
    (("--over", "serve.max_num_seq=1,2"), r"none of 2 points can be judged: .*did you mean 'max_num_seqs'"),
    (("--over", "serve.max_num_seqs"), "--over: expected key=value,value"),
    (("--over", "seed=1,2", "--objective", "median_topt_ms"), "did you mean 'median_tpot_ms'"),
    (("--over", "seed=1,2", "--objective", "duration"), "two objectives or more"),
    (("--over", "seed=1,2", "-o", "s.toml"), "exists and is not the directory of an earlier"),
    (("--over", "seed=1,2", "--json", "none/p.json"), "p.json: cannot be written"),
    (("--over", "serve.tensor_parallel_size=5,7", "-o", "out"), "5 does not divide 32 attention heads"),
])
def test_bad_input_is_an_error_and_leaves_nothing_behind(words, message, scenario):
    with pytest.raises(KsimError, match=message):
        run(*words)
    assert [path.name for path in scenario.iterdir()] == ["s.toml"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals a process group, which Windows has not")
def test_an_interrupt_ends_all_processes_and_leaves_nothing_behind(scenario):
    """Ctrl-C, which all processes of a terminal get, in the midst of two long runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ksim", "pareto", "s.toml", "--over", "seed=1,2", "--jobs", "2", "-o", "out", "--set",
         "workload.synthetic.count=1000000"], cwd=scenario, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=_heed_interrupts)  # noqa: PLW1509 - pytest has no threads that could be in its way
    for _ in range(20):  # a busy machine may still be importing, where Python can lose the first of them
        time.sleep(1.0)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGINT)
    try:
        _, error = process.communicate(timeout=30)  # waits for all of them, as each holds the pipe
    finally:
        process.kill()
    assert process.returncode == 130 and error == "ksim: interrupted; nothing was written\n"
    assert [path.name for path in scenario.iterdir()] == ["s.toml"]

"""`ksim sweep --front`, as a user meets it, and `ksim pareto`, its old name."""

import csv
import json

import pytest
from typer.testing import CliRunner

from ksim.cli import app
from ksim.cli.front import _over
from ksim.foundation.errors import KsimError
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.workers import InProcess
from tests.study.orders import backwards

from .command import SCENARIO, ksim, ksim_here

#: One of these points cannot be built, another cannot take the longest requests.
OVER = ("--over", "serve.max_num_seqs=1,2,16", "--over", "serve.max_num_batched_tokens=8192,8", "--over",
        "serve.max_model_len=8192,300")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What was written and printed."""
    folder = tmp_path_factory.mktemp("pareto")
    (folder / "s.toml").write_text(SCENARIO, encoding="utf-8")
    out = ksim("sweep", "s.toml", "--front", *OVER, "--set", "oracle=roofline", "--jobs", 1, "-o", "out", "--json",
               "p.json", folder=folder)
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
        assert bool(point["median_e2el_ms"]) is ("max_num_batched_tokens" not in point["problem"])
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
        summary = simulate(Scenario.read(file)).summary
        both = summary.keys() & point["summary"].keys()
        assert len(both) > 100 and all(summary[key] == point["summary"][key] for key in both)


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
    result = CliRunner().invoke(app, ["sweep", "s.toml", "--front", *map(str, words), "--jobs", "1"])
    if isinstance(result.exception, KsimError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path


def test_in_whatever_order_runs_end_the_same_is_found(found, monkeypatch):
    folder, out = found
    monkeypatch.chdir(folder)
    monkeypatch.setattr(InProcess, "run", backwards)
    alone = run(*OVER, "--set", "oracle=roofline", "--json", "alone.json")
    assert out.removesuffix("written to out\n") == alone
    assert (folder / "alone.json").read_bytes() == (folder / "p.json").read_bytes()


def test_three_objectives_and_a_sample_of_points(scenario):
    out = run("--over", "serve.max_num_seqs=1,2,4,8", "--sample", "random:2", "--set", "oracle=roofline", "-o", "out",
              "--objective", "max:output_throughput", "--objective", "median_ttft_ms", "--objective", "p99_tpot_ms")
    assert "max:output_throughput" in out and "best" in out
    assert len(rows(scenario)) == 2 and "p99_tpot_ms" in rows(scenario)[0]
    run("--over", "seed=1", "--set", "oracle=roofline", "-o", "out", "--force")  # in its place
    assert len(rows(scenario)) == 1


def test_points_are_kept_and_advice_is_given_where_none_counts(scenario):
    outcome = ksim_here("sweep", "s.toml", "--front", "--over", "serve.max_num_seqs=2,4", "--set",
                        "serve.max_model_len=300", "--set", "oracle=roofline", "--jobs", 1, "-o", "out",
                        "--json", "p.json", folder=scenario)
    assert outcome.status == 1 and "0 of 2 points are on the front" in outcome.stdout
    assert "none of 2 points counts: 4 rejected of 12 requests: " in outcome.stderr
    assert "--max-rejected 0.334 would let" in outcome.stderr
    assert [point["on_front"] for point in rows(scenario)] == ["false"] * 2
    assert all(float(point["median_e2el_ms"]) > 0 for point in rows(scenario))
    assert all(point["summary"]["failed"] == 4 for point in json.loads((scenario / "p.json").read_text())["points"])
    assert "on the front" in run("--over", "serve.max_num_seqs=2,4", "--set", "serve.max_model_len=300",
                                 "--set", "oracle=roofline", "--max-rejected", 0.42)


STOPS = """
from attrs import frozen
@frozen
class Stops:
    when: str = ""
    def seconds(self, kernel, gpu):
        if self.when == "interrupt":
            raise KeyboardInterrupt
        return 1e-5
"""


def test_what_was_run_before_an_interrupt_is_kept(scenario):
    (scenario / "mine.py").write_text(STOPS, encoding="utf-8")
    values = ",".join(f"{{name='mine:Stops', when='{when}'}}" for when in ("never", "interrupt", "later"))
    outcome = ksim_here("sweep", "s.toml", "--front", "--over", f"oracle={values}", "--jobs", 1, "-o", "out",
                        folder=scenario)
    assert (outcome.status, outcome.stderr) == (
        130, "ksim: 2 runs not run\nksim: interrupted; 1 of 3 runs are kept; --resume goes on with the others\n")
    assert "1 of 3 points are on the front" in outcome.stdout
    assert [point["problem"] for point in rows(scenario)] == ["", "not run", "not run"]


def test_the_old_name_says_the_new_one_and_does_the_same(scenario):
    words = ("s.toml", "--over", "serve.max_num_seqs=1,2,4,8", "--set", "oracle=roofline", "--jobs", 1)
    new = ksim_here("sweep", *words, "--front", "--sample", "random:2", folder=scenario)
    old = ksim_here("pareto", *words, "--sample", 2, folder=scenario)
    assert old.stdout == new.stdout and new.stderr == ""
    assert old.stderr == "ksim: `ksim pareto` is called `ksim sweep --front`; the old name goes with the next release\n"


def test_one_objective_and_requirements(scenario):
    out = run("--over", "serve.max_num_seqs=1,16", "--objective", "gpu_busy_share", "--require", "p99_ttft_ms<1e6",
              "--require", "median_ttft_ms<=100", "--set", "oracle=roofline", "-o", "out")
    assert "1 of 2 points are on the front" in out
    assert [*rows(scenario)[0]][2:5] == ["gpu_busy_share", "p99_ttft_ms", "median_ttft_ms"]
    missed = [point for point in rows(scenario) if point["problem"]]
    assert all("median_ttft_ms is " in point["problem"] for point in missed)
    assert (scenario / "out" / "pareto.png").stat().st_size > 10_000


@pytest.mark.parametrize(("value", "best", "text"), [
    (2.0, 2.0, "best"), (2.0, 1.0, "2.00x"), (1431.461, 1.0, "1,431x"), (1.5, 1.0, "+50.0%"), (0.5, 1.0, "-50.0%"),
    (1.0, 0.0, ""),
])
def test_large_differences_are_multiples(value, best, text):
    assert _over(value, best) == text

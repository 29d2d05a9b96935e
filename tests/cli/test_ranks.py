"""`ksim ranks` and what `ksim diff` and the report say of ranks, as a user meets them."""

import base64
import gzip
import json
import re

import pytest
from pyarrow import parquet

from ksim.flow.events import ExpertsMoved
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.views.wording import number
from tests.results.ranks_by_hand import EPLB

from .command import SCENARIO, ksim

SLOW = SCENARIO.replace('gpu = "h200"', 'gpu = "h200"\ndetail = "rank"').replace(
    "[serve]", "[serve]\ntensor_parallel_size = 4") + "[ranks]\nslow = [{gpu = 2, speed = 0.8, delay = '200 us'}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A scenario with a slow GPU, and its run."""
    made = tmp_path_factory.mktemp("ranks")
    (made / "s.toml").write_text(SCENARIO, encoding="utf-8")
    (made / "slow.toml").write_text(SLOW, encoding="utf-8")
    ksim("run", "slow.toml", "-o", "slow", "--quiet", "--no-trace", "--no-plots", folder=made)
    return made


def test_it_says_whom_gpus_wait_for_why_and_what_that_costs(folder):
    out = ksim("ranks", "slow", "-o", "pictures/slow.png", "--json", "ranks.json", folder=folder)
    rows = [line for line in out.splitlines() if line.startswith("GPU ")]
    assert len(rows) == 4 and rows[0].startswith("GPU 2")
    assert "waits: clock" in out and "waits: host" in out and "waits: link" not in out
    assert "clock: others are slower" in out and "host: no late hosts" in out and "without all of them" in out
    assert "* GPU 2 is the last in" in out and "drawn to pictures/slow.png" in out
    assert (folder / "pictures" / "slow.png").stat().st_size > 10_000
    found = json.loads((folder / "ranks.json").read_text())
    assert found["gpus"][0]["gpu"] == 2
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    path = found["critical_path"]
    assert sum(path["parts"].values()) == pytest.approx(path["seconds"])
    assert {*found["costs"]["costs"]} == {"clock", "host", "all of them"}
    summary = json.loads((folder / "slow" / "summary.json").read_text())
    assert found["costs"]["as_it_is"]["mean_tpot_ms"] == summary["mean_tpot_ms"]
    assert found["shares"]["clock"] == pytest.approx(summary["rank_wait_clock_share"])


def test_a_scenario_and_its_run_say_the_same(folder):
    outs = [ksim("ranks", name, "--no-costs", folder=folder).partition(": ")[2] for name in ("slow", "slow.toml")]
    assert outs[0] == outs[1] and "without each cause" not in outs[0]


def test_settings_may_make_ranks_differ_and_a_picture_may_be_an_svg(folder):
    changes = ("--set", "detail=rank", "--set", "serve.tensor_parallel_size=2", "--set", "ranks.speed_spread=0.1")
    for name in ("a.svg", "b.svg"):
        out = ksim("ranks", "s.toml", *changes, "--no-costs", "-o", name, folder=folder)
    assert out.count("\nGPU ") == 2
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes() and b"<svg" in (
        folder / "a.svg").read_bytes()


@pytest.mark.parametrize(("words", "problem"), [
    (("s.toml",), "detail: 'step' takes all GPUs of a stage to be alike"),
    (("slow.toml", "--set", "ranks.slow=[]"), "ranks: no GPU of the run can differ from others"),
    (("slow", "-o", "slow.jpg"), "-o: slow.jpg is no picture; name a file that ends in .png or .svg"),
    (("nowhere",), "nowhere")])
def test_what_cannot_be_told_is_refused(folder, words, problem):
    assert problem in ksim("ranks", *words, folder=folder, code=1)


def test_the_run_directory_has_a_row_of_each_step_and_gpu(folder):
    rows, steps = (parquet.read_table(folder / "slow" / f"{name}.parquet") for name in ("ranks", "steps"))
    assert len(rows) == 4 * len(steps) and {*rows["gpu"].to_pylist()} == {0, 1, 2, 3}


def test_diff_says_which_causes_changed(folder):
    ksim("run", "slow.toml", "-o", "faster", "--set", "ranks.slow=[{gpu = 2, speed = 0.9, delay = '200 us'}]",
         "--quiet", "--no-trace", "--no-plots", folder=folder)
    ksim("run", "s.toml", "-o", "plain", "--quiet", "--no-trace", "--no-plots", folder=folder)
    out = ksim("diff", "slow", "faster", folder=folder)
    (line,) = (line for line in out.splitlines() if line.startswith("* GPUs wait"))
    assert line.startswith("* GPUs wait for others -") and "clock -" in line
    assert "as long as before" in ksim("diff", "slow", "slow", folder=folder)
    assert "GPUs wait" not in ksim("diff", "plain", "slow", folder=folder)
    assert "rank_wait" not in ksim("diff", "plain", "plain", folder=folder)


def test_the_page_and_the_report_have_ranks_only_where_there_are_some(folder):
    ksim("run", "s.toml", "-o", "alike", "--quiet", "--no-trace", "--no-plots", folder=folder)
    assert "GPUs wait for others" in ksim("run", "slow.toml", folder=folder)
    for name in ("slow", "alike"):
        ksim("report", name, "-o", f"{name}.html", folder=folder)
    slow, alike = ((folder / f"{name}.html").read_text() for name in ("slow", "alike"))
    assert 'id="ranks"' in slow and "GPU 2" in slow and 'id="figure-ranks"' in slow and 'id="ranks"' not in alike


def panels(folder, run) -> list[str]:
    """The titles of the panels in the figure of ranks on the page of *run*."""
    ksim("report", run, "-o", "page.html", folder=folder)
    (packed,) = re.findall('id="data">([^<]*)<', (folder / "page.html").read_text(encoding="utf-8"))
    figure = json.loads(gzip.decompress(base64.b64decode(packed)))["figures"]["ranks"]
    return [text["text"] for text in figure["layout"]["annotations"]]


def test_rearrangements_of_experts_are_listed_with_what_they_move_and_gain(tmp_path):
    result = simulate(Scenario.of(EPLB))
    result.save(tmp_path / "run", plots=False, trace=False)
    out = ksim("ranks", "run", "--no-costs", "--json", "ranks.json", folder=tmp_path)
    moves = [*result.log.of(ExpertsMoved)]
    lines = out.partition("What EPLB moved")[2].splitlines()
    rows = [line.split() for line in lines if line.startswith(("at ", "all "))]
    assert len(rows) == 1 + len(moves) == 4
    assert [row[-5] for row in rows] == [number(move.experts) for move in moves] + [
        number(sum(move.experts for move in moves))]
    assert [row[-2:] for row in rows[:-1]] == [[f"{move.before:.3f}", f"{move.after:.3f}"] for move in moves]
    assert json.loads((tmp_path / "ranks.json").read_text())["rearrangements"] == [
        {"start": move.start, "seconds": move.time - move.start, "engine": 0, "stage": 0, "experts": move.experts,
         "bytes": move.bytes, "before": move.before, "after": move.after} for move in moves]
    assert "Rows by layer" in panels(tmp_path, "run")


def test_runs_without_eplb_tell_of_no_rearrangements(folder):
    out = ksim("ranks", "slow.toml", "--no-costs", "--json", "plain.json", folder=folder)
    assert "EPLB" not in out and "rearrangements" not in json.loads((folder / "plain.json").read_text())
    assert (shown := panels(folder, "slow")) and "Rows by layer" not in shown

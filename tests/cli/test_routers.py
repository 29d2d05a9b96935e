"""`ksim routers`, as a user meets it: a table, files, and what it refuses."""

import csv
import json

import pytest

from ksim.study.routers import RouterComparison
from tests.cli.command import SCENARIO, ksim_here

ASKED = ("routers", "s.toml", "--set", "serve.data_parallel_size=2", "--set", "oracle=roofline", "--jobs", 1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path


def test_routers_are_compared_in_a_table_and_all_numbers_are_kept(folder):
    names = "round_robin,prefix_aware:load_tokens=-1"
    outcome = ksim_here(*ASKED, "--routers", names, "-o", "out", "--json", "all.json", folder=folder)
    assert outcome.status == 0 and outcome.stdout.split()[:3] == ["router", "mean", "regret"]
    assert "omniscient" in outcome.stdout and "written to out; `ksim report out` makes a page" in outcome.stdout
    assert "ksim: prefix_aware:load_tokens=-1 did not run: prefix_aware: 'load_tokens'" in outcome.stderr
    rows = list(csv.DictReader((folder / "out" / "routers.csv").open(encoding="utf-8")))
    told = json.loads((folder / "all.json").read_text())["routers"]
    assert [row["router"] for row in rows] == [one["router"] for one in told] == ["omniscient", *names.split(",")]
    assert float(rows[1]["mean_regret_ms"]) == told[1]["mean_regret_ms"] and told[2]["problem"]
    assert (folder / "out" / "routers.png").read_bytes().startswith(b"\x89PNG")
    assert len(RouterComparison.read(folder / "out").rows) == 3
    again = ksim_here(*ASKED, "-o", "out", folder=folder)
    assert again.status == 1 and "holds an earlier study" in again.stderr


@pytest.mark.parametrize("more, message", [
    (("--routers", "round_robin,,"), "--routers: expected names with commas between"),
    (("--routers", "nearest"), "no router named 'nearest'"),
    (("--staleness", ","), "--staleness: "),
    (("--resume",), "--resume: goes on with a study that is kept; name its directory with -o"),
    (("--set", "serve.data_parallel_size=1"), "a router needs several engines to choose from")])
def test_what_cannot_be_compared_is_refused(folder, more, message):
    outcome = ksim_here(*ASKED, *more, folder=folder)
    assert outcome.status == 1 and message in outcome.stderr

"""`ksim explain` and `ksim diff`, as a user meets them."""

import json

import pytest

from .test_cli import SCENARIO, ksim


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same requests twice, the second time one after another."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "s.toml").write_text(SCENARIO, encoding="utf-8")
    for name, seats in (("a", 64), ("b", 1)):
        ksim("run", "s.toml", "-o", name, "--set", f"serve.max_num_seqs={seats}", "--quiet", "--no-plots", "--no-trace",
             folder=folder)
    return folder


def test_explain_says_where_one_requests_time_went(runs):
    out = ksim("explain", "b", "--request", 11, "--json", "e.json", "-o", "plots", folder=runs)
    assert "request 11" in out and "drawn into plots/explain.png" in out
    rows = {line.strip().split("  ")[0]: line.split() for line in out.splitlines() if line.strip()}
    assert {"client and intake", "queue", "own prefill", "decode", "host", "delivery", "gemm", "all"} <= rows.keys()
    times = json.loads((runs / "e.json").read_text())["times"]
    assert {*times} == {"to_first", "after", "all"}
    assert times["all"]["seconds"] == pytest.approx(times["to_first"]["seconds"] + times["after"]["seconds"])
    assert all(sum(each["phases"].values()) == pytest.approx(each["seconds"], abs=1e-9) for each in times.values())
    assert (runs / "plots" / "explain.png").stat().st_size > 10_000


def test_explain_says_what_is_behind_the_latencies_of_all(runs):
    out = ksim("explain", "a", "--json", "all.json", folder=runs)
    assert "mean TTFT" in out and "* p99 E2EL:" in out
    times, summary = (json.loads((runs / name).read_text()) for name in ("all.json", "a/summary.json"))
    for name, each in times["times"].items():
        assert 1e3 * each["seconds"] == pytest.approx(summary[f"{name}_ms"])


def test_diff_says_what_the_difference_is_made_of(runs):
    out = ksim("diff", "a", "b", "--json", "d.json", "-o", "plots", folder=runs)
    assert "12 requests that completed in both" in out and "(queue +" in out
    found = json.loads((runs / "d.json").read_text())
    assert (found["runs"], found["completed"], found["in_both"]) == (["a", "b"], [12, 12], 12)
    change = found["times"]["mean_ttft"]["change"]
    assert sum(change["phases"].values()) == pytest.approx(change["seconds"])
    assert change["phases"]["queue"] == max(change["phases"].values()) > 0.8 * change["seconds"]
    assert (runs / "plots" / "diff.png").stat().st_size > 10_000


def test_diff_of_one_request_and_of_a_run_with_itself(runs):
    assert "request 11" in ksim("diff", "a", "b", "--request", 11, "-o", "plots", folder=runs)
    assert "* mean TTFT: no change\n" in ksim("diff", "a", "a", folder=runs)


def test_a_run_whose_trace_and_scenario_are_gone_is_explained_too(runs, tmp_path):
    for name in ("summary.json", "requests.parquet", "attribution.parquet"):
        (tmp_path / name).write_bytes((runs / "a" / name).read_bytes())
    assert "request 3" in ksim("explain", tmp_path, "--request", 3, folder=runs)


@pytest.mark.parametrize(("words", "message"), [
    (("explain", "none"), "none: there is no run; name a directory"),
    (("explain", "a", "--request", 12), "no request 12 among 12; the nearest are 9, 10, 11"),
    (("diff", "a", "none"), "none: there is no run"),
    (("diff", "a", "b", "--request", -4), "the nearest are 0, 1, 2"),
    (("explain", "a", "--json", "a"), "a: cannot be written"),
    (("explain", "a", "-o", "s.toml"), "s.toml: cannot be written"),
])
def test_bad_input_is_one_clear_line(words, message, runs):
    error = ksim(*words, folder=runs, code=1)
    assert message in error and error.startswith("ksim: ") and error.count("\n") == 1

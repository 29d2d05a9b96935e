"""`ksim explain` and `ksim diff`, as a user meets them."""

import json
import re
import shutil

import pyarrow as pa
import pytest
from pyarrow import parquet

from ksim.cli.diff import change
from ksim.views.run_directory import changed

from .command import SCENARIO, ksim_here


def ksim(*words, folder, status=0):
    """What the command prints, or its error where *status* is not 0."""
    outcome = ksim_here(*words, folder=folder)
    assert outcome.status == status, outcome.stderr
    return outcome.stderr if status else outcome.stdout


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


def test_the_queue_of_explain_is_that_of_the_report(runs):
    """It begins when the engine has the request: what the front end takes before that is not in it."""
    ksim("explain", "b", "--json", "q.json", folder=runs)
    times, summary = (json.loads((runs / name).read_text()) for name in ("q.json", "b/summary.json"))
    phases = times["times"]["mean_ttft"]["phases"]
    assert phases["intake"] > 1e-4
    assert 1e3 * phases["queue"] == pytest.approx(summary["mean_queue_ms"], rel=1e-9)


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


def line_of(out, word):
    return next(line.split() for line in out.splitlines() if line.split()[:1] == [word])


def test_diff_compares_settings_and_numbers_of_whole_runs(runs):
    out = ksim("diff", "a", "b", "--json", "d.json", folder=runs)
    assert line_of(out, "serve.max_num_seqs") == ["serve.max_num_seqs", "64", "1"]
    found = json.loads((runs / "d.json").read_text())
    summaries = [json.loads((runs / name / "summary.json").read_text()) for name in ("a", "b")]
    assert found["settings"]["serve.max_num_seqs"] == [64, 1]
    assert all(key.startswith("serve.") for key in found["settings"])
    assert found["summary"] == {key: [summary[key] for summary in summaries] for key in summaries[0]}
    before, after = found["summary"]["output_throughput"]
    assert before > after and line_of(out, "output_throughput")[3].startswith(("-", "0."))
    for key in ("prefix_cache_hit_rate", "energy_joules", "joules_per_output_token", "gpu_busy_share"):
        assert line_of(out, key)
    assert "energy_dollars" not in out  # no price is stated


def test_diff_of_runs_without_phases_or_common_requests_compares_the_rest(runs):
    ksim_here("run", "s.toml", "-o", "streamed", "--stream", "--quiet", folder=runs)
    outcome = ksim_here("diff", "a", "streamed", "--json", "d.json", folder=runs)
    assert outcome.status == 0 and "! where requests' time went is not compared: streamed: " in outcome.stdout
    assert line_of(outcome.stdout, "energy_joules")
    assert "times" not in json.loads((runs / "d.json").read_text())
    assert ksim_here("diff", "a", "streamed", "--request", 3, folder=runs).status == 1


def test_diff_of_a_run_with_itself_finds_no_change(runs):
    out = ksim_here("diff", "a", "a", "--json", "same.json", folder=runs).stdout
    assert "the same settings in both" in out and len(line_of(out, "energy_joules")) == 3
    assert json.loads((runs / "same.json").read_text())["settings"] == {}


@pytest.mark.parametrize(("key", "first", "second", "text"), [
    ("mfu", 0.25, 0.5, "+25.0 pp"), ("duration", 2.0, 3.0, "+50.0%"), ("duration", 1.0, 68.0, "68.0x"),
    ("duration", 4.0, 1.0, "0.25x"), ("preemptions", 0, 12, "+12"), ("duration", None, 1.0, ""),
    ("duration", 1.0, 1.0, ""),
])
def test_changes_are_points_percentages_or_multiples(key, first, second, text):
    assert change(key, first, second) == text


def test_settings_differ_by_value_and_a_plug_in_by_its_name():
    one = {"gpu": "h200", "oracle": "measured", "seed": 1}
    other = {"gpu": "h200", "oracle.name": "roofline", "oracle.compute": 0.5, "seed": 1, "nodes": 2}
    assert changed(one, other) == {"oracle.name": ("measured", "roofline"), "oracle.compute": (None, 0.5),
                                   "nodes": (None, 2)}
    assert changed(other, one)["oracle.name"] == ("roofline", "measured")


@pytest.mark.parametrize(("name", "text"), [("summary.json", "{"), ("summary.json", "[]"), ("summary.json", "\x00"),
                                            ("scenario.toml", "x = ")])
def test_a_damaged_run_is_named(name, text, runs, tmp_path):
    shutil.copytree(runs / "a", tmp_path / "damaged")
    (tmp_path / "damaged" / name).write_text(text)
    outcome = ksim_here("diff", runs / "a", "damaged", folder=tmp_path)
    assert outcome.status == 1 and outcome.stderr.startswith(f"ksim: damaged/{name}: ")
    assert outcome.stderr.count("\n") == 1


def changed_table(name, column, value):
    """What gives *column* of the table *name* in a folder another *value*, or removes it."""
    def change_it(folder):
        table = parquet.read_table(folder / name)
        place = table.column_names.index(column)
        table = (table.remove_column(place) if value is None else
                 table.set_column(place, column, pa.array([value] * len(table))))
        parquet.write_table(table, folder / name)

    return change_it


def changed_summary(**changes):
    def change_it(folder):
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | changes))

    return change_it


@pytest.mark.parametrize(("damage", "commands"), [
    (changed_summary(duration="x"), ("diff a", "report")), (changed_summary(mfu={}), ("diff a",)),
    (changed_table("requests.parquet", "id", None), ("diff a", "explain", "report")),
    (changed_table("requests.parquet", "id", 3), ("diff a", "explain", "report")),
    (changed_table("requests.parquet", "tpot_s", "x"), ("report",)),
    (changed_table("attribution.parquet", "id", float("nan")), ("diff a", "explain", "report")),
    (changed_table("attribution.parquet", "to_first.queue", float("inf")), ("diff a", "explain", "report")),
    (changed_table("attribution.parquet", "to_first.queue", "x"), ("diff a", "explain", "report")),
    (lambda folder: (folder / "summary.json").write_text('{"requests": 3}'), ("diff a",)),
])
def test_a_run_whose_files_were_changed_is_refused_in_one_line(damage, commands, runs, tmp_path):
    shutil.copytree(runs / "a", tmp_path / "a")
    shutil.copytree(runs / "a", tmp_path / "damaged")
    damage(tmp_path / "damaged")
    for command, *more in map(str.split, commands):
        outcome = ksim_here(command, *more, "damaged", folder=tmp_path)
        assert outcome.status == 1 and outcome.stderr.count("\n") == 1, outcome
        assert "damaged" in outcome.stderr and re.search("run (it|both) again", outcome.stderr)


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
def test_bad_input_to_explain_and_diff_is_one_clear_line(words, message, runs):
    error = ksim(*words, folder=runs, status=1)
    assert message in error and error.startswith("ksim: ") and error.count("\n") == 1

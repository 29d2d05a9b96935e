"""What holds for the reader of every benchmark client, and what each reads."""

import json
import math

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as some

from ksim.foundation.catalog import find, names
from ksim.foundation.errors import DataError
from ksim.validation.benchmarks.comparison import compare
from ksim.validation.benchmarks.find import FOLDER, read, runs_of
from tests.properties import examples
from tests.validation.benchmarks import fabricate
from tests.validation.benchmarks.fabricate import SCENARIO, mixed, run

CLIENTS = names(FOLDER)
#: Clients that record requests, and how they would have recorded a run.
DETAILED = {"vllm_bench": fabricate.vllm_bench, "aiperf": fabricate.aiperf, "genai_perf": fabricate.genai_perf,
            "guidellm": fabricate.guidellm}
#: Results without requests, of a closed loop of equal ones.
CLOSED = {"vllm_bench": lambda served, of: fabricate.vllm_bench(served, of, detailed=False),
          "sglang_bench": lambda served, of: fabricate.sglang_bench(served, of, detailed=False),
          "sglang_bench with details": fabricate.sglang_bench, "inferencemax": fabricate.inferencemax,
          "aiperf": fabricate.aiperf_summary, "genai_perf": fabricate.genai_perf_summary}
PIECES = ['"', "{", "}", "[", "]", ",", ":", "-", "1e308", "NaN", "null", "9" * 20, "\n", "\\", "[[", "{}",
          "-1", "0", '"a"']


@pytest.fixture
def result(tmp_path):
    """Write a result."""

    def write(text, name="result.json"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def errors(runs):
    (compared,) = compare(runs, SCENARIO)
    return {name: compared.error(name) for name in compared.figures}, compared


@pytest.mark.parametrize("name", CLIENTS)
class TestEveryReader:
    def test_the_example_of_a_client_is_of_no_other(self, result, name):
        reader = find(FOLDER, name)()
        runs = read(result(reader.example))
        assert runs and all(one.figures and one.count > 0 for one in runs)

    def test_half_an_example_is_an_error_with_its_line(self, result, name):
        example = find(FOLDER, name).example
        with pytest.raises(DataError, match=r"result.json:[12]: is not JSON at column \d+ .*cut short"):
            read(result(example[:len(example) // 2]))


@examples(60)
@given(name=some.sampled_from(CLIENTS), place=some.floats(0, 1), gone=some.integers(0, 5),
       put=some.sampled_from(PIECES))
def test_a_changed_result_reads_or_is_an_error_of_one_line(tmp_path_factory, name, place, gone, put):
    text = find(FOLDER, name).example
    begin, path = int(place * len(text)), tmp_path_factory.mktemp("law") / "result.json"
    path.write_text(text[:begin] + put + text[begin + gone:])
    try:
        read(path)
    except DataError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error) and len(str(error)) < 700


def places(value, path=()):
    """The paths of all values in JSON."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in members:
        yield from places(inner, (*path, key))


@examples(80)
@given(data=some.data(), name=some.sampled_from(CLIENTS), value=some.sampled_from(
    [None, -1, 0, 1e308, math.nan, math.inf, "", "x", [], {}, True, [1], {"a": 1}, 10**30, "1e5", [None], [[]]]))
def test_a_value_of_another_kind_reads_or_is_an_error(tmp_path_factory, data, name, value):
    tables = [json.loads(line) for line in find(FOLDER, name).example.splitlines()]
    *path, last = data.draw(some.sampled_from([place for place in places(tables[-1]) if place]))
    inner = tables[-1]
    for key in path:
        inner = inner[key]
    inner[last] = value
    (file := tmp_path_factory.mktemp("law") / "result.json").write_text("\n".join(map(json.dumps, tables)))
    try:
        assert all(math.isfinite(figure) for one in read(file) for figure in one.figures.values())
    except DataError as error:
        assert str(error).startswith(str(file)) and "\n" not in str(error)


@pytest.mark.parametrize("client", DETAILED)
def test_a_run_of_ours_as_a_client_records_it_has_no_error(result, client):
    served = run(mixed(15))
    found, compared = errors(read(result(DETAILED[client](served))))
    assert {"ttft_p99", "tpot_mean", "e2el_p50", "output_throughput"} <= found.keys()
    assert all(abs(error) < 0.01 for error in found.values()), found
    assert not compared.causes and compared.how == "recorded lengths and arrivals"


@pytest.mark.parametrize("client", ["vllm_bench", "guidellm", "genai_perf"])
def test_a_closed_loop_of_ours_as_a_client_records_it_has_no_error(result, client):
    found, compared = errors(read(result(DETAILED[client](run(mixed(14), concurrency=3), 3))))
    assert all(abs(error) < 0.01 for error in found.values()), found
    assert compared.how == "recorded lengths; closed loop of 3, as the client's"


@pytest.mark.parametrize("client", CLOSED)
def test_aggregates_of_equal_requests_in_a_closed_loop_have_no_error(result, client):
    served = run(((200, 9),) * 20, concurrency=2)
    found, compared = errors(read(result(CLOSED[client](served, 2))))
    assert {"ttft_mean", "tpot_p50", "output_throughput"} <= found.keys()
    assert all(abs(error) < 0.01 for error in found.values()), found
    assert "arrivals are not recorded: closed loop of 2" in compared.how and not compared.causes


def test_aiperf_has_its_load_from_the_summary_beside_it_and_a_folder_is_one_run(result):
    served = run(mixed(14), concurrency=3)
    result(fabricate.aiperf_summary(served, 3), "profile_export_aiperf.json")
    path = result(fabricate.aiperf(served), "profile_export.jsonl")
    result("a,b\n", "profile_export_aiperf.csv")
    result('{"data": []}', "inputs.json")
    (one,) = runs_of([path.parent])
    assert one.served and one.load.concurrency == 3
    found, _ = errors([one])
    assert all(abs(error) < 0.01 for error in found.values()), found


def cut_run():
    """GuideLLM's report of a run of 60 requests in a closed loop that ended half-way, and when it ended."""
    served = run(((200, 30),) * 60, concurrency=20)
    end = max(one.sent + one.e2e for one in served) / 2
    report = json.loads(fabricate.guidellm([one for one in served if one.sent + one.e2e <= end], 20))
    (benchmark,) = report["benchmarks"]
    left = [one for one in served if one.sent < end < one.sent + one.e2e]
    benchmark["requests"]["incomplete"] = [
        {"request_start_time": fabricate.ORIGIN + one.sent, "prompt_tokens": one.prompt} for one in left]
    benchmark["duration"] = end
    return report, len(left)


def test_a_run_that_was_cut_is_compared_by_what_ends_within_its_time(result):
    report, left = cut_run()
    (one,) = read(result(json.dumps(report)))
    found, compared = errors([one])
    assert left > 10 and one.incomplete == len(one.unfinished) == left
    assert {"ttft_p99", "output_throughput"} <= found.keys() and not compared.causes
    assert all(abs(error) < 0.01 for error in found.values()), found
    said = f"the run was cut: {left} of {one.count + left} requests were incomplete when it ended; {left} of them are"
    assert any(remark.startswith(said) for remark in compared.remarks)


def test_a_run_that_was_cut_without_its_requests_has_no_throughput_to_compare(result):
    report, left = cut_run()
    (benchmark,) = report["benchmarks"]
    done = len(benchmark["requests"]["successful"])
    lengths = {"successful": {"mean": 200, "min": 200, "max": 200}}
    benchmark["metrics"] = {
        "request_totals": {"successful": done, "errored": 0, "incomplete": left}, "prompt_token_count": lengths,
        "output_token_count": lengths, "time_to_first_token_ms": {"successful": {"mean": 20.0}},
        "requests_per_second": {"successful": {"mean": 9.0}}}
    benchmark["requests"] = {"successful": [], "incomplete": []}
    found, compared = errors(read(result(json.dumps(report))))
    assert [*found] == ["ttft_mean"] and any("throughputs are not compared" in remark for remark in compared.remarks)


def test_the_same_run_as_json_and_as_yaml_counts_once(result):
    import yaml

    report = json.loads(fabricate.guidellm(run(mixed(14))))
    result(yaml.dump(report), "benchmarks.yaml")
    path = result(json.dumps(report), "benchmarks.json")
    result(fabricate.guidellm(run(mixed(9))), "others.json")
    one, other = runs_of([path.parent])
    assert one.count == 14 and one.remarks[-1] == "benchmarks.yaml has the same run, which counts once"
    assert other.count == 9 and not other.remarks


def test_a_key_with_a_newline_leaves_the_message_in_one_line(result):
    with pytest.raises(DataError) as refused:
        read(result('{"a\\nb": 1}'))
    assert "it has a\\nb" in str(refused.value) and "\n" not in str(refused.value)


def test_lengths_that_only_quantiles_say_are_spread_over_them(result):
    summary = fabricate.aiperf_summary(run(mixed(14), concurrency=3), 3)
    _, compared = errors(read(result(summary)))
    assert "drawn from their mean and percentiles" in compared.how


def test_runs_of_a_file_are_compared_by_growing_load(result):
    text = "\n".join(fabricate.sglang_bench(run(((200, 9),) * 8, concurrency=of), of) for of in (4, 1))
    compared = compare(read(result(text, "r.jsonl")), SCENARIO)
    assert [one.recorded.load.concurrency for one in compared] == [1, 4]


def test_failed_requests_are_counted_and_left_out(result):
    table = json.loads(fabricate.vllm_bench(run(mixed(14))))
    for key in ("ttfts", "latencies", "output_lens"):
        table[key][3] = 0
    table["itls"][3], table["errors"][3] = [], "HTTP 503"
    (one,) = read(result(json.dumps(table)))
    assert (one.count, one.failed) == (13, 1)
    _, compared = errors([one])
    assert "1 requests failed in the recording, and are not simulated" in compared.remarks


@pytest.mark.parametrize(("change", "says"), [
    ({"ttfts": [20.0] * 14, "latencies": [60.0] * 14, "itls": [[1.0]] * 14}, "are these milliseconds"),
    ({"ttfts": [0.1] * 13}, "ttfts has 13 entries, but input_lens has 14"),
    ({"ttfts": ["x"] * 14}, r"ttfts\[0\] is 'x'; expected a number"),
    ({"output_lens": [0] * 14}, "no request was answered, and 14 failed"),
    ({"latencies": [0.0] * 14}, r"request 0 ends \(0 s\) before its first token"),
    ({"itls": [3] * 14}, "itls holds something else than a list of numbers"),
    ({"mean_ttft_ms": 1e6}, "one of them is in another unit"),
    ({"total_output_tokens": None}, "benchmark of embeddings"),
])
def test_what_cannot_be_is_an_error(result, change, says):
    path = result(json.dumps(json.loads(fabricate.vllm_bench(run(mixed(14)))) | change))
    with pytest.raises(DataError, match=says):
        read(path)


@pytest.mark.parametrize(("text", "says"), [
    ("", "is empty"), ("\0\1", "is not JSON"), ('{"a": 1}', "no known client .it has a"), ("[]", "no known client"),
    ("[1]", "holds 1; expected a table"), ("[" * 100_000, "nested too deeply"),
    ("arrival,prompt\n0,1\n", "is CSV; expected the JSON or YAML that a benchmark client writes"),
    ("a\tb\n1\t2\n", "is a table of tabs; expected"), ("\n<!DOCTYPE html>\n<html>", "is HTML; expected the JSON or"),
    ("<?xml version='1.0'?>", "is XML"), ("hello, world", "is not JSON at column 1"),
    ('{"hw": "b200", "conc": 2, "tput_per_gpu": 1}', "imply them"),
])
def test_other_files_are_errors(result, text, says):
    with pytest.raises(DataError, match=says):
        read(result(text))


def test_yaml_reads_as_json_and_its_faults_have_a_line(result):
    import yaml

    text = fabricate.guidellm(run(mixed(14)))
    (one,) = read(result(yaml.dump(json.loads(text)), "benchmarks.yaml"))
    (other,) = read(result(text))
    assert one.served == other.served and one.failed == 1
    with pytest.raises(DataError, match=r"benchmarks.yaml:2: is not YAML"):
        read(result("a: [1,\nb: }", "benchmarks.yaml"))


def test_units_of_aiperf_are_read_and_unknown_ones_refused(result):
    text = fabricate.aiperf(run(mixed(14)))
    (one,) = read(result(text))
    microseconds = [json.loads(line) for line in text.splitlines()]
    for row in microseconds:
        for metric in row["metrics"].values():
            if metric["unit"] == "ms" and not isinstance(metric["value"], list):
                metric.update(value=1e3 * metric["value"], unit="us")
    (same,) = read(result("\n".join(map(json.dumps, microseconds))))
    assert [o.ttft for o in same.served] == pytest.approx([o.ttft for o in one.served])
    with pytest.raises(DataError, match="unit is 'fortnights'; expected one of s,"):
        read(result(text.replace('"ms"', '"fortnights"')))


def test_a_result_of_another_deployment_is_said(result):
    served = run(((200, 9),) * 20, concurrency=2)
    (one,) = read(result(fabricate.inferencemax(served, 2)))
    _, same = errors([one])
    _, other = errors([evolve(one, facts={"model": "Qwen/Qwen3-8B", "tp": 8, "gpu": "b200-nv"})])
    assert not any("the scenario of" in remark for remark in same.remarks)
    assert sum("the scenario of" in remark for remark in other.remarks) == 3


def test_rows_of_inferencemaxs_site_read_as_its_files(result):
    served = run(((200, 9),) * 20, concurrency=2)
    table = json.loads(fabricate.inferencemax(served, 2))
    figures = {key: table.pop(key) for key in [*table] if "_" in key and key != "dp_attention"}
    row = {**table, "hardware": table.pop("hw"), "decode_tp": table.pop("tp"), "metrics": figures}
    del row["hw"], row["tp"]
    (one,) = read(result(json.dumps([row])))
    (same,) = read(result(fabricate.inferencemax(served, 2)))
    assert (one.figures, one.load, one.facts) == (same.figures, same.load, same.facts)

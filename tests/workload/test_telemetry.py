"""vLLM's spans and Prometheus' counters as traces and, spans, as recordings."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ksim.foundation.errors import DataError
from ksim.validation.benchmarks.comparison import compare
from ksim.validation.benchmarks.find import read as read_result
from ksim.workload.reading import read, recognise
from ksim.workload.replay import Replay
from tests.properties import examples
from tests.validation.benchmarks.fabricate import ORIGIN, SCENARIO, mixed, run

NS = 10**9


def attributes(**values):
    kinds = {int: lambda value: {"intValue": str(value)}, float: lambda value: {"doubleValue": value},
             str: lambda value: {"stringValue": value}}
    return [{"key": key.replace("__", "."), "value": kinds[type(value)](value)} for key, value in values.items()]


def span(start, prompt, output, **more):
    return {"name": "llm_request", "startTimeUnixNano": str(start), "attributes": attributes(
        gen_ai__usage__prompt_tokens=prompt, gen_ai__usage__completion_tokens=output, **more)}


def otlp(spans):
    other = {"name": "load_model", "startTimeUnixNano": "5", "attributes": attributes(code__function="f")}
    return "".join(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [other, one]}]}]}) + "\n" for one in spans)


def jaeger(spans):
    def values(one):
        return [{"key": pair["key"], "type": "x", "value": next(iter(pair["value"].values()))}
                for pair in one["attributes"]]

    listed = [{"traceID": "a", "operationName": one["name"], "startTime": int(one["startTimeUnixNano"]) // 1000,
               "tags": values(one)} for one in spans]
    return json.dumps({"data": [{"traceID": "a", "spans": listed}]}, indent=1)


@pytest.fixture
def file(tmp_path):
    """Write a file."""

    def write(text, name="spans.jsonl"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("form", [otlp, jaeger])
def test_spans_are_read_to_the_microsecond_by_their_starts(file, form):
    starts = [ORIGIN * NS + 250_123_000, ORIGIN * NS, ORIGIN * NS + 900_000_000]
    path = file(form([span(start, 40 + number, 7, gen_ai__request__max_tokens=number * 9)
                      for number, start in enumerate(starts)]))
    assert recognise(path) == "otel"
    rows = list(read(path))
    assert [row.arrival for row in rows] == [0.0, 0.250123, 0.9]
    assert [(row.prompt, row.max_tokens) for row in rows] == [(41, 9), (40, None), (42, 18)]


def test_several_sequences_of_a_request_are_one_row(file):
    spans = [span(ORIGIN * NS, 40, 7 + place, gen_ai__request__n=3, gen_ai__request__id="a") for place in range(3)]
    (row,) = read(file(otlp(spans)))
    assert (row.n, row.output) == (3, 7)


@pytest.mark.parametrize(("text", "says"), [
    (otlp([]) or '{"resourceSpans": []}', "has no spans"),
    (json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}), "has no span of a request"),
    (otlp([span("soon", 4, 5)]), "without a start"),
    (otlp([span(5, "many", 5)]), "gen_ai.usage.prompt_tokens is 'many'"),
    (otlp([span(5, 4, 5, gen_ai__latency__e2e=-1.0)]), "gen_ai.latency.e2e is -1.0; expected seconds"),
])
def test_spans_that_cannot_be_read_are_errors_with_their_line(file, text, says):
    with pytest.raises(DataError, match=f"spans.jsonl:1: .*{says}"):
        list(read(file(text), "otel"))


@pytest.mark.parametrize("form", [otlp, jaeger])
def test_spans_of_a_run_of_ours_have_no_error(file, form):
    served = run(mixed(14))
    path = file(form([span(
        round(NS * (ORIGIN + one.sent)), one.prompt, one.output, gen_ai__latency__time_to_first_token=one.ttft,
        gen_ai__latency__e2e=one.e2e, gen_ai__latency__time_in_queue=one.queue) for one in served]))
    (compared,) = compare(read_result(path), SCENARIO)
    errors = {name: compared.error(name) for name in compared.figures}
    assert {"ttft_p99", "tpot_mean", "e2el_p50", "output_throughput"} <= errors.keys() and not compared.causes
    assert all(abs(error) < 0.01 for error in errors.values()), errors


def series(name, values, step=15, **labels):
    return {"metric": {"__name__": f"vllm:{name}", "engine": "0", **labels},
            "values": [[ORIGIN + step * number, str(value)] for number, value in enumerate(values)]}


def answer(*members):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": members}})


GROWTH = some.lists(some.integers(0, 30), min_size=1, max_size=6).filter(any)


@examples(30)
@given(growth=GROWTH, shares=some.lists(some.integers(0, 9), min_size=4, max_size=4).filter(lambda of: any(of[:3])))
def test_as_many_requests_are_drawn_in_each_interval_as_ended_there(tmp_path_factory, growth, shares):
    total = np.cumsum([70, *growth])
    ends, parts = ("10", "100", "1000", "+Inf"), np.cumsum(shares) / sum(shares)
    text = answer(series("request_success_total", total // 2, finished_reason="stop"),
                  series("request_success_total", total - total // 2, finished_reason="length"),
                  *(series("request_prompt_tokens_bucket", share * total, le=end)
                    for share, end in zip(parts, ends, strict=True)),
                  series("generation_tokens_total", 11 * total))
    path = tmp_path_factory.mktemp("law") / "range.json"
    path.write_text(text)
    rows = list(Replay(path, format="prometheus").requests(3))
    assert rows == list(Replay(path, format="prometheus").requests(3))
    begin = next(number for number, count in enumerate(growth) if count)
    assert len(rows) == sum(growth) and rows[-1].arrival <= 15 * (len(growth) - begin)
    assert {row.output for row in rows} == {11}
    open_end = 2000 if shares[3] else (1000, 100, 10)[next(place for place in range(3) if shares[2 - place])]
    assert all(1 <= row.prompt <= open_end for row in rows)


def test_lengths_have_the_mean_that_the_sums_say(file):
    counts = [0, 40_000]
    path = file(answer(
        series("request_success_total", counts),
        series("request_prompt_tokens_bucket", [0, 10_000], le="100"),
        series("request_prompt_tokens_bucket", counts, le="500"),
        series("request_prompt_tokens_sum", [0, 40_000 * 170]),
        series("generation_tokens_total", [0, 80_000])), "r.json")
    prompts = np.array([row.prompt for row in read(path, "prometheus")])
    assert prompts.mean() == pytest.approx(170, rel=0.02)
    assert (prompts <= 100).mean() == pytest.approx(0.25, abs=0.02)


def test_a_counter_that_begins_anew_goes_on(file):
    path = file(answer(series("request_success_total", [90, 95, 2, 4]), series("prompt_tokens_total", [0, 40, 60, 80]),
                       series("generation_tokens_total", [0, 9, 20, 30])), "r.json")
    assert len(list(read(path))) == 5 + 2 + 2


@pytest.mark.parametrize(("text", "says"), [
    ('{"status": "error", "error": "parse error"}', "Prometheus says 'parse error'"),
    ('{"status": "success", "data": {"resultType": "vector", "result": []}}', "resultType is 'vector'; expected"),
    (answer(), "has 0 times"),
    (answer(series("request_success_total", [1])), "has 1 times"),
    (answer(series("num_requests_running", [1, 2])), "has no counter of requests, only vllm_num_requests_running"),
    (answer(series("request_success_total", [1, 1])), "counts 0 requests"),
    (answer(series("request_success_total", [0, 1e9])), "counts 1,000,000,000 requests"),
    (answer(series("request_success_total", [0, 5])), "says nothing of the lengths: it lacks vllm:request_prompt"),
    (answer(series("request_success_total", [0, 5], le="x")), "a bucket that ends at 'x'"),
    (answer({"metric": {"job": "vllm"}, "values": [[1, "2"]]}), "a series without a name, job: query the counters"),
    (answer({"metric": {"__name__": "x"}, "values": [[1]]}), r"the sample \[1\]"),
])
def test_answers_of_which_no_trace_follows_are_errors(file, text, says):
    with pytest.raises(DataError, match=says):
        list(read(file(text, "r.json"), "prometheus"))

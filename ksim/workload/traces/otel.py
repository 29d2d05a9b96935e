"""vLLM's OpenTelemetry spans: OTLP's JSON, as the collector's file exporter writes it, or Jaeger's export.

vLLM 0.33 sends a span `llm_request` for each sequence that ends, with the attributes of its `SpanAttributes`.
https://docs.vllm.ai/en/latest/examples/online_serving/opentelemetry.html
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ksim.workload.jsonl import documents, keys
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, number_of, shown

__all__ = ["Otel"]


_PROMPT = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
_OUTPUT = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
_LATENCY = "gen_ai.latency."
#: Where OTLP and Jaeger keep lists of spans, from the outermost table inwards.
_LISTS = ("data", "result", "resourceSpans", "scopeSpans", "instrumentationLibrarySpans", "batches", "spans")
_VALUES = ("intValue", "doubleValue", "stringValue", "boolValue")
_MOST_TOKENS = 10**9

Problem = Callable[[str], Exception]


class RequestSpan(NamedTuple):
    """A request as its span describes it: `start` in nanoseconds, latencies in seconds, None where unknown."""

    start: int
    prompt: int
    output: int
    name: str
    n: int
    most: int | None
    ttft: float | None
    e2e: float | None
    queue: float | None


def has_spans(document: Mapping[str, Any]) -> bool:
    """Whether *document* holds spans of OTLP or Jaeger, of whatever."""
    return any(True for _ in _spans(document))


def request_spans(document: Mapping[str, Any], problem: Problem) -> Iterator[RequestSpan]:
    """Yield the spans of requests in *document*; others, such as those of loading a model, are left out.

    Raises *problem* for a document without spans, and for a span that cannot be read.
    """
    if not has_spans(document):
        raise problem("has no spans, neither in OTLP's JSON (resourceSpans) nor in Jaeger's (data)")
    for span in _spans(document):
        attributes = _attributes(span)
        prompt = _first(attributes, _PROMPT)
        if prompt is not None:
            yield _request(span, attributes, prompt, problem)


def _spans(table: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The spans in *table* and in the tables in it."""
    for key in _LISTS:
        inner = table.get(key)
        for member in inner if isinstance(inner, list) else [inner]:
            if isinstance(member, Mapping):
                yield from (member,) if key == "spans" else _spans(member)


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span of OTLP, or the tags of one of Jaeger's, by name."""
    listed = span.get("attributes") or span.get("tags")
    if isinstance(listed, Mapping):
        return dict(listed)
    pairs: Sequence[Any] = listed if isinstance(listed, list) else []
    return {str(pair.get("key")): _value(pair.get("value")) for pair in pairs if isinstance(pair, Mapping)}


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return next((value[kind] for kind in _VALUES if kind in value), None)
    return value


def _first(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _request(span: Mapping[str, Any], attributes: Mapping[str, Any], prompt: Any, problem: Problem) -> RequestSpan:
    tokens = _whole(prompt, _PROMPT[0], problem)
    output = _whole(_first(attributes, _OUTPUT) or 0, _OUTPUT[0], problem)
    most, n = attributes.get("gen_ai.request.max_tokens"), attributes.get("gen_ai.request.n")
    latencies = (_seconds(attributes.get(_LATENCY + name), name, problem)
                 for name in ("time_to_first_token", "e2e", "time_in_queue"))
    return RequestSpan(
        _start(span, problem), tokens, output, str(attributes.get("gen_ai.request.id") or ""),
        1 if n is None else _whole(n, "gen_ai.request.n", problem),
        None if most is None else _whole(most, "gen_ai.request.max_tokens", problem), *latencies)


def _start(span: Mapping[str, Any], problem: Problem) -> int:
    """The time at which the request arrived: OTLP has nanoseconds since 1970, Jaeger microseconds."""
    for key, scale in (("startTimeUnixNano", 1), ("start_time_unix_nano", 1), ("startTime", 1000)):
        value = span.get(key)
        if isinstance(value, str) and value.isdecimal() and len(value) < 20:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**19:
            return value * scale
    raise problem("has a span of a request without a start: expected startTimeUnixNano (OTLP) or startTime (Jaeger)")


def _whole(value: Any, name: str, problem: Problem) -> int:
    number = number_of(value)
    if not number.is_integer() or not 0 <= number <= _MOST_TOKENS:
        raise problem(f"{name} is {shown(value)}; expected a whole number of at most {_MOST_TOKENS:,}")
    return int(number)


def _seconds(value: Any, name: str, problem: Problem) -> float | None:
    if value is None:
        return None
    number = number_of(value)
    if not 0 <= number < 1e9:
        raise problem(f"{_LATENCY}{name} is {shown(value)}; expected seconds")
    return number


class Otel:
    """Reads the spans of requests, `llm_request`, with their tokens; spans of anything else are left out.

    vLLM sends a span for each sequence of a request with `n` of them: the first that
    is in the file has the output length for all.
    """

    example = (
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "llm_request", "startTimeUnixNano": '
        '"1795000000250000000", "attributes": [{"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "40"}}, '
        '{"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "12"}}]}]}]}]}\n'
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "llm_request", "startTimeUnixNano": '
        '"1795000000000000000", "attributes": [{"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "90"}}, '
        '{"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "30"}}, {"key": '
        '"gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.021}}]}]}]}]}\n'
    )
    time_unit = "dates"
    empty = "skip"
    remark = "the trace has the spans that were sampled, at the times at which the server received the requests"

    def recognises(self, first: str) -> bool:
        names = keys(first)
        return "resourceSpans" in names or {"spans", "operationName"} <= names

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        first: int | None = None
        several: set[str] = set()
        lines.dates = True
        for document in documents(lines):
            for span in request_spans(document, lines.error):
                first = span.start if first is None else first
                if span.n < 2 or span.name not in several:
                    yield _row(span, first)
                if span.n > 1 and span.name:
                    several.add(span.name)
        if first is None:
            raise lines.error("has no span of a request; expected attributes such as gen_ai.usage.prompt_tokens, as"
                              " vLLM sends them with --otlp-traces-endpoint")


def _row(span: RequestSpan, first: int) -> Row:
    """The row of *span*, from the start of the *first* one: nanoseconds since 1970 have more digits than floats."""
    most = span.most if span.most is not None and span.most > span.output > 0 else None
    return Row((span.start - first) / 1e9, span.prompt, span.output, max_tokens=most, n=max(1, span.n))

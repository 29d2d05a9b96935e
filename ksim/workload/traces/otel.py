"""vLLM's OpenTelemetry spans: OTLP's JSON, as the collector's file exporter writes it, or Jaeger's export.

https://docs.vllm.ai/en/latest/examples/online_serving/opentelemetry.html
"""

from collections.abc import Iterator

from ksim.workload.jsonl import documents, keys
from ksim.workload.lines import Lines
from ksim.workload.rows import Row
from ksim.workload.spans import RequestSpan, request_spans

__all__ = ["Otel"]


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

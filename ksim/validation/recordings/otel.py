"""vLLM's OpenTelemetry spans (OTLP's JSON or Jaeger's), with the server's own TTFT, latency and time in the queue.

https://docs.vllm.ai/en/latest/examples/online_serving/opentelemetry.html
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ksim.validation.benchmarks.files import Table
from ksim.validation.benchmarks.recorded import Recorded, Served
from ksim.workload.spans import RequestSpan, has_spans, request_spans
from ksim.workload.traces.otel import Otel as Trace

__all__ = ["Otel"]


class Otel:
    """Reads all spans of a file as one run; latencies are those at the server, without client and network."""

    example = Trace.example

    def recognises(self, first: Table) -> bool:
        return has_spans(first.values)

    def runs(self, path: Path, tables: Sequence[Table]) -> Iterator[Recorded]:
        spans = [span for table in tables for span in request_spans(table.values, table.error)]
        done = sorted((span for span in spans if span.output and span.prompt), key=lambda span: span.start)
        several = sum(span.n > 1 for span in done)
        remarks = ("latencies are those at the server: client and network are not in them",
                   *((f"{several} spans are of one of several sequences, each of which is simulated as a request",)
                     if several else ()))
        yield Recorded(path, path.stem, "vLLM's spans", len(done), len(spans) - len(done),
                       tuple(_served(span, done[0].start) for span in done), remarks=remarks)


def _served(span: RequestSpan, first: int) -> Served:
    start = (span.start - first) / 1e9
    return Served(span.prompt, span.output, span.ttft, span.e2e, arrival=start, sent=start, queue=span.queue)

"""The HTTP metrics of vLLM, which come from prometheus-fastapi-instrumentator there, as ASGI middleware."""

from collections.abc import Awaitable, Sequence
from time import perf_counter

from attrs import define, field

from ksim.server.exposition import MetricFamily
from ksim.server.http.streams import App, Message, Receive, Send

__all__ = ["HttpMetrics"]

#: Paths that vLLM does not count.
_EXCLUDED = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
_SECONDS = (0.1, 0.5, 1.0)
_FINE_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5,
                 10.0, 30.0, 60.0)


@define(eq=False)
class HttpMetrics:
    """Counts the requests of `app` by their paths; those of paths without handlers count together as "none".

    Times are seconds of the wall clock.
    """

    app: App
    handlers: Sequence[str]
    requests: MetricFamily = field(init=False)
    request_bytes: MetricFamily = field(init=False)
    response_bytes: MetricFamily = field(init=False)
    fine: MetricFamily = field(init=False)
    seconds: MetricFamily = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.requests = MetricFamily("http_requests", "counter", "Requests by method, status and handler.")
        self.request_bytes = MetricFamily("http_request_size_bytes", "summary",
                                          "Bytes of requests, by Content-Length.")
        self.response_bytes = MetricFamily("http_response_size_bytes", "summary",
                                           "Bytes of answers, by Content-Length.")
        self.fine = MetricFamily("http_request_duration_highr_seconds", "histogram",
                                 "Seconds to the end of the answer.", _FINE_SECONDS)
        self.seconds = MetricFamily("http_request_duration_seconds", "histogram", "The same by handler.", _SECONDS)

    @property
    def families(self) -> Sequence[MetricFamily]:
        """All families of these metrics."""
        return self.requests, self.request_bytes, self.response_bytes, self.fine, self.seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _EXCLUDED:
            await self.app(scope, receive, send)
            return
        begun, answer = perf_counter(), dict[str, int](status=500, bytes=0)

        def noted(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                answer.update(status=message["status"], bytes=_length(message.get("headers", ())))
            return send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            self._count(scope, answer, perf_counter() - begun)

    def _count(self, scope: Message, answer: dict[str, int], seconds: float) -> None:
        handler = scope["path"] if scope["path"] in self.handlers else "none"
        method, status = scope["method"], f"{answer['status'] // 100}xx"
        self.requests.count({"handler": handler, "method": method, "status": status}).value += 1
        self.request_bytes.count({"handler": handler}).observe(_length(scope["headers"]))
        self.response_bytes.count({"handler": handler}).observe(answer["bytes"])
        self.fine.histogram({}).observe(seconds)
        self.seconds.histogram({"handler": handler, "method": method}).observe(seconds)


def _length(headers: Sequence[tuple[bytes, bytes]]) -> int:
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit() and len(value) < 19:
            return int(value)
    return 0

"""The ASGI application: paths, keys, and readiness."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from secrets import compare_digest
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from attrs import define, field
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ksim.server.errors import ApiError
from ksim.server.exposition import CONTENT_TYPE
from ksim.server.http.streams import Disconnected, Message, Receive, ResponseSink, Send, disconnection, parsed, read
from ksim.server.live import Handle
from ksim.server.openai.api import Api, Generation
from ksim.server.openai.reply import Reply, to_json

if TYPE_CHECKING:
    from ksim.server.http.wire import Wire

__all__ = ["Application", "EngineApi", "json_response"]

LOGGER = logging.getLogger("ksim.server")

#: Paths that need a key, as in vLLM.
_GUARDED = ("/v1", "/v2", "/inference")
_STARTING = "The server is starting; try again when /health answers 200"
_DRAINING = "The server is shutting down, and takes no new requests"
#: A fault of the server's own, which is logged.
_BROKEN = ApiError("Internal server error", 500, "InternalServerError")
Endpoint = Callable[[Request], Awaitable[Response]]
Prepare = Callable[[Api, Any, Headers], Generation]


class EngineApi(Protocol):
    """What an engine answers differently from vLLM."""

    @property
    def generators(self) -> Mapping[tuple[str, str], Prepare]:
        """What reads the bodies of requests that generate, by their methods and paths."""
        ...

    @property
    def absent(self) -> Collection[str]:
        """Paths of vLLM that it lacks."""
        ...

    def routes(self) -> Sequence[Route]:
        """Its further paths."""
        ...

    def guards(self, path: str) -> bool:
        """Whether a path needs a key, if there are keys."""
        ...

    def refuse(self, sink: ResponseSink, error: ApiError) -> None:
        """Answer with *error*."""
        ...

    def told(self, error: ApiError) -> dict[str, Any]:
        """The JSON of *error*."""
        ...


#: What vLLM has.
_GENERATORS: Mapping[tuple[str, str], Prepare] = {
    ("POST", "/v1/completions"): Api.completion, ("POST", "/v1/chat/completions"): Api.chat}


@define(eq=False)
class Application:
    """The paths of the server; it answers with 503 until `api` is set, and while it is `draining`.

    Bodies have at most `max_body` bytes.  If there are `keys`, requests need one of them.  `metrics` returns the text
    of /metrics.
    """

    keys: Sequence[str] = ()
    max_body: int = 64 * 2**20
    api: Api | None = None
    draining: bool = False
    metrics: Callable[[], bytes] | None = None
    engine: EngineApi | None = field(default=None, init=False)
    _digests: list[bytes] = field(init=False)
    _pages: Starlette = field(init=False)
    _generators: Mapping[tuple[str, str], Prepare] = field(default=_GENERATORS, init=False)

    def __attrs_post_init__(self) -> None:
        self._digests = [sha256(key.encode()).digest() for key in self.keys]
        self._pages = self._made_pages()

    def answer_as(self, engine: EngineApi) -> None:
        """Answer as this *engine* does, and no more as vLLM does."""
        self.engine, self._generators = engine, {**_GENERATORS, **engine.generators}
        self._pages = self._made_pages()

    def _made_pages(self) -> Starlette:
        return Starlette(routes=self._routes(), exception_handlers={
            HTTPException: self._http_error, ApiError: self._api_error, Disconnected: _gone, Exception: self._broken})

    @property
    def paths(self) -> Sequence[str]:
        """All paths."""
        return [route.path for route in self._routes()]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._pages(scope, receive, send)
        headers, path = Headers(scope=scope), scope["path"]
        request_id = headers.get("x-request-id") or uuid4().hex
        if self._guards(path) and scope["method"] != "OPTIONS" and not self._admits(headers):
            answer = json_response({"error": "Unauthorized"}, 401)
            answer.headers["x-request-id"] = request_id
            return await answer(scope, receive, send)
        prepare = self._generators.get((scope["method"], path))
        if prepare is not None:
            state = scope.get("state", {})
            wire: Wire | None = state.get("wire")
            sink = ResponseSink.of(send, request_id, wire.write if wire else None)
            sink.refuse = self.engine.refuse if self.engine else None
            return await self._generate(prepare, headers, receive, sink, state)
        await self._pages(scope, receive, _naming(send, request_id))

    def _guards(self, path: str) -> bool:
        return path.startswith(_GUARDED) if self.engine is None else self.engine.guards(path)

    def _admits(self, headers: Headers) -> bool:
        if not self._digests:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = sha256(key.encode()).digest()
        return any(compare_digest(digest, own) for own in self._digests) and scheme.lower() == "bearer"

    # Generation.

    async def _generate(self, prepare: Callable[[Api, Any, Headers], Generation], headers: Headers, receive: Receive,
                        sink: ResponseSink, state: Mapping[str, Any]) -> None:
        """Have a prompt answered; the request is aborted if the client goes.

        It arrives when its last byte `came`, if its *state* says that: parsing and counting tokens take none of the
        simulated time, in which the front end of the simulated engine does the same.
        """
        try:
            body, api = await read(headers, receive, self.max_body), self._ready()
        except Disconnected:
            return
        except ApiError as error:
            sink.fail(error)
            await sink.until_over(disconnection(receive))
            return
        gone, came = disconnection(receive), state.get("came", api.live.wall())
        begun = await api.live.turns.take(
            lambda: None if gone.done() else self._begin(prepare, body, headers, sink, came), came)
        if not await sink.until_over(gone) and begun:
            reply, handles = begun
            reply.over = True
            api.abort(handles)

    def _begin(self, prepare: Callable[[Api, Any, Headers], Generation], body: bytes, headers: Headers,
               sink: ResponseSink, came: float) -> tuple[Reply, Sequence[Handle]] | None:
        """Have the request in *body* answered, which *came* then; None if it is refused."""
        try:
            api = self._ready()
            generation = prepare(api, parsed(body), headers)
        except ApiError as error:
            sink.fail(error)
            return None
        except Exception:
            LOGGER.exception("a request cannot be read")
            sink.fail(_BROKEN)
            return None
        generation.reply.sink = sink
        return generation.reply, api.start(generation, came)

    def _ready(self) -> Api:
        """The API; raises ApiError while the server starts or drains."""
        if self.draining or self.api is None:
            raise ApiError(_DRAINING if self.draining else _STARTING, 503)
        return self.api

    # Everything else.

    def _routes(self) -> list[Route]:
        gets: dict[str, Endpoint] = {
            "/health": self._health, "/load": self._load, "/version": self._version, "/v1/models": self._models,
            "/v1/models/{name:path}": self._model, "/metrics": self._metrics}
        posts: dict[str, Endpoint] = {"/tokenize": self._tokenize, "/detokenize": self._detokenize,
                                      "/v1/completions": self._health, "/v1/chat/completions": self._health}
        routes = [*(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()),
                  *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
                  Route("/ping", self._health, methods=["GET", "POST"])]
        if self.engine is None:
            return routes
        own = [Route(path, self._health, methods=[method]) for method, path in self.engine.generators]
        return [*(route for route in routes if route.path not in self.engine.absent), *self.engine.routes(), *own]

    async def _health(self, request: Request) -> Response:
        return Response(status_code=503 if self.draining or self.api is None else 200)

    async def _load(self, request: Request) -> Response:
        return json_response({"server_load": len(self.api.live.handles) if self.api else 0})

    async def _version(self, request: Request) -> Response:
        return json_response({"version": self._ready().served.version})

    async def _models(self, request: Request) -> Response:
        return json_response(self._ready().served.cards)

    async def _model(self, request: Request) -> Response:
        served = self._ready().served
        name, _ = served.model(request.path_params["name"])
        return json_response(next(card for card in served.cards["data"] if card["id"] == name))

    async def _metrics(self, request: Request) -> Response:
        if self.metrics is None:
            raise ApiError(_STARTING, 503)
        return Response(self.metrics(), media_type=CONTENT_TYPE)

    async def _tokenize(self, request: Request) -> Response:
        return await self._told(Api.tokenize, request)

    async def _detokenize(self, request: Request) -> Response:
        return await self._told(Api.detokenize, request)

    async def _told(self, tell: Callable[[Api, Any], dict[str, Any]], request: Request) -> Response:
        body, api = await read(request.headers, request.receive, self.max_body), self._ready()
        return json_response(await api.live.turns.take(lambda: tell(api, parsed(body)), api.live.wall()))

    # Errors.

    async def _http_error(self, request: Request, error: Exception) -> Response:
        """The answer to an unknown path or method, as in vLLM."""
        assert isinstance(error, HTTPException)
        told = ApiError(error.detail, error.status_code).body if self.engine is None else {"detail": error.detail}
        return json_response(told, error.status_code, error.headers)

    async def _api_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return json_response(error.body if self.engine is None else self.engine.told(error), error.status)

    async def _broken(self, request: Request, error: Exception) -> Response:
        return await self._api_error(request, _BROKEN)


def json_response(table: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(table), status, headers, "application/json")


def _naming(send: Send, request_id: str) -> Send:
    """*send*, with X-Request-Id in each response."""
    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(raw=message["headers"])["x-request-id"] = request_id
        await send(message)
    return named


async def _gone(request: Request, error: Exception) -> Response:
    """The response to a client that has disconnected, which nobody reads."""
    return Response(status_code=499)

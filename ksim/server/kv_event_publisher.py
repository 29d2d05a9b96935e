"""Publishes KV events by ZeroMQ, with vLLM's frames and replay socket."""

from asyncio import Task, create_task
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from attrs import define, field

from ksim.engine.engine import Engine
from ksim.foundation.errors import ConfigError, KsimError
from ksim.server.kv_events import OPTION, Batch, CacheEvents, KvEventsConfig, TokenIds, endpoint_of, subscribe_to_cache

__all__ = ["KvEvents", "Publisher"]


#: The sequence number that ends an answer of the replay socket: -1.
_END = (-1).to_bytes(8, "big", signed=True)


@define(eq=False)
class Publisher:
    """The PUB socket of engine `number`, and the ROUTER socket that answers requests for earlier batches."""

    number: int
    config: KvEventsConfig
    context: zmq.asyncio.Context
    endpoint: str = field(init=False)
    replay_endpoint: str | None = field(init=False)
    _pub: Any = field(init=False)  # a plain socket, since PUB sockets never wait
    _router: zmq.asyncio.Socket | None = field(default=None, init=False)
    _sent: deque[tuple[int, bytes]] = field(init=False)
    _next: int = field(default=0, init=False)
    _replay: "Task[None] | None" = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self._sent = deque(maxlen=config.buffer_steps)
        self._pub = self.context.socket(zmq.PUB, socket_class=zmq.Socket)  # type: ignore[arg-type]
        self._pub.set_hwm(config.hwm)
        self._pub.linger = 0
        self.endpoint = _open(self._pub, endpoint_of(config.endpoint, self.number))
        self.replay_endpoint = None
        if config.replay_endpoint:
            self._router = self.context.socket(zmq.ROUTER)
            self._router.linger = 0
            self._router.setsockopt(zmq.SNDHWM, 2 * (config.buffer_steps + 1))
            self.replay_endpoint = _bind(self._router, endpoint_of(config.replay_endpoint, self.number))

    def publish(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Send a batch of *events*, and keep it for the replay socket; never waits for a subscriber."""
        payload = msgspec.msgpack.encode((time(), events, self.number))
        number = self._next
        self._next += 1
        self._sent.append((number, payload))
        self._pub.send_multipart((self.config.topic.encode(), number.to_bytes(8, "big"), payload))

    def serve(self) -> None:
        """Answer at the replay socket until `close`."""
        if self._router is not None:
            self._replay = create_task(self._answer_all(self._router))

    async def _answer_all(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) == 3:  # the client, an empty frame, and the number of the first batch
                await self._answer(router, frames[0], int.from_bytes(frames[2], "big"))

    async def _answer(self, router: zmq.asyncio.Socket, client: bytes, first: int) -> None:
        topic = self.config.topic.encode()
        for number, payload in [*self._sent]:
            if number >= first:
                await router.send_multipart((client, b"", topic, number.to_bytes(8, "big"), payload))
        await router.send_multipart((client, b"", b"", _END, b""))

    def close(self) -> None:
        """Close the sockets."""
        if self._replay is not None:
            self._replay.cancel()
        if self._router is not None:
            self._router.close(linger=0)
        self._pub.close(linger=0)


@define(eq=False)
class KvEvents:
    """Publishes the events of all engines, each at ports of its own, as vLLM's data-parallel ranks do."""

    publishers: Sequence[Publisher]
    token_ids: TokenIds
    _context: zmq.asyncio.Context

    @classmethod
    def of(cls, config: KvEventsConfig, engines: Sequence[Engine], chunk_tokens: int) -> "KvEvents":
        """Bind the sockets of *engines*, which have not begun; names of blocks stand for *chunk_tokens* tokens each.

        Raises KsimError for caches without events, and for addresses that cannot be bound.
        """
        token_ids, made = TokenIds(chunk_tokens), dict[int, CacheEvents]()
        context, publishers = zmq.asyncio.Context(), list[Publisher]()
        try:
            for engine in engines:
                publishers.append(Publisher(engine.number, config, context))
                subscribe_to_cache(engine, _teller(publishers[-1], engine, token_ids, made))
        except KsimError:
            _close(publishers, context)
            raise
        return cls(publishers, token_ids, context)

    @property
    def remember(self) -> Callable[..., None]:
        """Is to be called with the name of each block and its token ids."""
        return self.token_ids.remember

    def serve(self) -> None:
        """Answer at all replay sockets from now on."""
        for publisher in self.publishers:
            publisher.serve()

    def close(self) -> None:
        """Close all sockets."""
        _close(self.publishers, self._context)


def _teller(publisher: Publisher, engine: Engine, token_ids: TokenIds,
            made: dict[int, CacheEvents]) -> Callable[[Batch], None]:
    """Publishes a batch of *engine*; engines whose caches share keys also share the events *made* of them."""
    keys: Any = getattr(engine.scheduler.cache, "keys", None)
    events = made.setdefault(id(keys), CacheEvents(keys, token_ids))
    return lambda batch: publisher.publish([*events.events(batch[1])])


def _open(socket: Any, endpoint: str) -> str:
    """Bind *socket* to a wildcard, ipc or inproc address, or connect it to any other, as vLLM does."""
    if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
        return _bind(socket, endpoint)
    _try(socket.connect, socket, endpoint)
    return endpoint


def _bind(socket: Any, endpoint: str) -> str:
    _try(socket.bind, socket, endpoint)
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def _try(action: Callable[[str], object], socket: Any, endpoint: str) -> None:
    try:
        action(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ConfigError(OPTION, f"cannot use the address {endpoint!r}: {error}") from None


def _close(publishers: Sequence[Publisher], context: zmq.asyncio.Context) -> None:
    for publisher in publishers:
        publisher.close()
    context.destroy(linger=0)

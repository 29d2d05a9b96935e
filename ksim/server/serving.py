"""`ksim serve`: a live fleet behind an HTTP server, from start to end."""

import asyncio
import gc
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time
from types import FrameType

import uvicorn
from attrs import define, field, frozen

from ksim.server.exposition import MetricFamily
from ksim.server.http.application import Application
from ksim.server.http.http_metrics import HttpMetrics
from ksim.server.http.streams import Address, allow_many_files
from ksim.server.http.wire import TimedProtocol
from ksim.server.kv_event_publisher import KvEvents
from ksim.server.kv_events import KvEventsConfig
from ksim.server.live import Live, warm_up
from ksim.server.metrics import Meter
from ksim.server.openai.api import Api
from ksim.server.openai.kinds import ServedModel
from ksim.server.openai.prompts import CHUNK
from ksim.server.recording import LiveRecording
from ksim.server.text import HuggingFaceTokenizer, MadeUpTokenizer, Tokenizer
from ksim.simulation.fleet import Fleet

__all__ = ["ServerSettings", "serve"]


@frozen
class ServerSettings:
    """How a fleet is served, with the names of `vllm serve` where it has such a flag.

    `speed` is in simulated seconds per second.
    """

    address: Address = Address()
    speed: float = 1.0
    served_model_name: Sequence[str] = ()
    tokenizer: Path | None = None
    api_key: Sequence[str] = ()
    max_body_size: int = 64 * 2**20
    enable_log_requests: bool = False
    enable_prompt_tokens_details: bool = False
    kv_events: KvEventsConfig = KvEventsConfig()


def serve(make: Callable[[], Fleet], settings: ServerSettings, say: Callable[[str], object],
          recorded: LiveRecording | None = None) -> Live | None:
    """Serve the fleet that *make* returns until SIGINT or SIGTERM, and then until all requests have ended.

    A second signal drops them.  *say* prints when the server is ready, and when it drains.  The run is *recorded* if
    that is given.  Raises KsimError for what cannot be served.  Returns the live fleet, or None if it never began.
    """
    tokenizer = HuggingFaceTokenizer.read(settings.tokenizer) if settings.tokenizer else None
    allow_many_files()
    with settings.address.bound() as listening:
        server = _Server.on(settings)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            return runner.run(_Service(make, settings, say, recorded, tokenizer, server).run(listening))


class _Server(uvicorn.Server):
    """uvicorn's server, which sets `listens` when it does, and calls `interrupted` for signals."""

    def __init__(self, config: uvicorn.Config, application: Application, http: HttpMetrics) -> None:
        super().__init__(config)
        self.application, self.http = application, http
        self.listens = asyncio.Event()
        self.interrupted: Callable[[], object] = lambda: None

    @classmethod
    def on(cls, settings: ServerSettings) -> "_Server":
        """A server with a new application."""
        application = Application(settings.api_key, settings.max_body_size)
        http, log = HttpMetrics(application, application.paths), settings.enable_log_requests
        return cls(uvicorn.Config(http, http=TimedProtocol, lifespan="off", ws="none", server_header=False,
                                  access_log=log, log_level="info" if log else "warning"), application, http)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Pass on a signal."""
        self.interrupted()


@define(eq=False)
class _Service:
    """Builds a fleet while clients get status 503, lets them in, and drains it after a signal."""

    make: Callable[[], Fleet]
    settings: ServerSettings
    say: Callable[[str], object]
    recorded: LiveRecording | None
    tokenizer: Tokenizer | None
    server: _Server
    _signals: int = field(default=0, init=False)
    _live: Live | None = field(default=None, init=False)

    async def run(self, listening: socket.socket) -> Live | None:
        """Serve until the end."""
        loop = asyncio.get_running_loop()
        self.server.interrupted = lambda: loop.call_soon_threadsafe(self._interrupted)
        serving = asyncio.create_task(self.server.serve([listening]))
        await self.server.listens.wait()
        try:
            live = await asyncio.to_thread(self._built)
            if not self._signals:
                await self._play(live, self.settings.address.url(listening), serving)
        finally:
            self.server.should_exit = True
            await serving
        return self._live

    def _built(self) -> Live:
        kept = self.recorded.sink if self.recorded else None
        live = Live(self.make(), self.settings.speed, kept=kept, tells=self.settings.kv_events.publishes)
        warm_up(live)
        if self.recorded:
            self.recorded.attach(live)
        return live

    async def _play(self, live: Live, url: str, serving: "asyncio.Task[None]") -> None:
        """Play the fleet until it is drained."""
        config = self.settings.kv_events
        events = KvEvents.of(config, live.engines, CHUNK) if config.publishes else None
        if events is not None:
            events.serve()
        self._open(live, events)
        self.say(f"serving {', '.join(self._served(live).names)} on {url}; Ctrl-C ends it")
        playing = asyncio.create_task(live.run())
        try:
            await asyncio.wait((playing, serving), return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                playing.result()
        finally:
            playing.cancel()
            if events is not None:
                events.close()

    def _open(self, live: Live, events: KvEvents | None) -> None:
        """Let clients in: set the API and the metrics of the application."""
        served, application, http = self._served(live), self.server.application, self.server.http
        meter = _sglang_meter(live, served) if served.sglang else Meter(live, served.names[0])
        tokenizer = self.tokenizer or MadeUpTokenizer(served.vocabulary)
        api = Api(live, served, tokenizer, live.fleet.scenario.seed, events.remember if events else None,
                  meter.aborted, tells_cached=self.settings.enable_prompt_tokens_details)
        families = self._answer_as_sglang(api, meter) if served.sglang else http.families
        application.api, application.metrics = api, lambda: meter.text(*families)
        self._live = live
        _collect_less_often()

    def _answer_as_sglang(self, api: Api, meter: Meter) -> Sequence[MetricFamily]:
        """Have the application answer as SGLang does; return its HTTP metrics."""
        from ksim.server.sglang_api import SglangApi
        from ksim.server.sglang_metrics import SglangHttpMetrics, SglangMeter

        assert isinstance(meter, SglangMeter), "an engine has its own metrics"
        application, http = self.server.application, self.server.http
        application.answer_as(SglangApi(api, meter, str(self.settings.tokenizer or api.served.root)))
        counted = SglangHttpMetrics(application, application.paths)
        http.app = counted
        return counted.families

    def _served(self, live: Live) -> ServedModel:
        return ServedModel.of(live.fleet, self.settings.served_model_name, int(time()))

    def _interrupted(self) -> None:
        """A signal has come: the first one drains the server, the second one drops what is left."""
        self._signals += 1
        self.server.application.draining = True
        if self._signals > 1 or self._live is None:
            self.server.should_exit = self.server.force_exit = True
            if self._live is not None:
                self._live.drop()
            return
        if count := len(self._live.handles):
            self.say(f"waiting for {count:,} request{'s' if count > 1 else ''}; Ctrl-C again drops them")
        self._live.drain()


def _sglang_meter(live: Live, served: ServedModel) -> Meter:
    """What counts in SGLang's metrics; only servers of SGLang import it."""
    from ksim.server.sglang_metrics import SglangMeter

    return SglangMeter(live, served.names[0])


def _collect_less_often() -> None:
    """Keep the garbage collector from stopping all streams: the fleet stays, and next to nothing is in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)

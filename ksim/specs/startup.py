"""How long an engine takes to start, in parts: from a pod that is scheduled to the first request that it may take.

A part is a time, or bytes over a path with the time that they take alone; ten replicas that start at once share a path,
which is for a simulation to say.  The figures of a machine are a `Startup`, a data file in ksim/data/startup; what is
started is an `EngineLoad`.  Parts follow each other, as in vLLM: `seconds` of a start is the sum of its parts.

Times of torch.compile, of profiling and of CUDA graphs go by the number of layers, as measured (Kabakibo et al., MLSys
2026): Dynamo traces each layer, and each layer is a piece of code and of a graph.  Weights are bytes over a path.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from attrs import field, frozen, validators

from ksim.foundation.units import Seconds, quantity

__all__ = ["EngineLoad", "Startup", "StartupPart", "seconds"]


#: Amounts and rates, which data files write with their units.
Bytes = Annotated[float, "B"]
BytesPerSecond = Annotated[float, "B/s"]


def _amount(usual: float = 0.0) -> Any:
    return field(default=usual, converter=quantity, validator=validators.ge(0))


def _rate() -> Any:
    return field(converter=quantity, validator=validators.gt(0))


@frozen
class EngineLoad:
    """What one engine loads, compiles and captures on its `gpus`, which do so side by side.

    `weights` are bytes on all of them; a GPU reads its own from its memory in `read` seconds.  It has so many `layers`,
    of which `states` keep the state of a Mamba layer, and `experts` or none; pipeline stages have the longest one's.
    It is `compiled` by torch.compile or not, captures so many CUDA `graphs`, and may multiply with `deep_gemm`.
    """

    weights: float
    layers: int
    vocabulary: int
    gpus: int = 1
    states: int = 0
    experts: bool = False
    compiled: bool = True
    graphs: int = 0
    read: float = 0.0
    deep_gemm: bool = False


@frozen
class StartupPart:
    """A part of a start and its seconds; where it moves `bytes` over a `path`, those that it takes alone."""

    name: str
    seconds: float
    bytes: float = 0.0
    path: str = ""


@frozen
class PathRates:
    """Bytes per second of one engine alone over each path.

    Images come from the `registry`; checkpoints from the `hub` (a download), from a `network` file system or object
    store, from a local `disk`, or from the `page_cache` that an earlier start has filled.  GPUs get weights from a
    `peer` with the same ones over RDMA, and from their `host`'s memory over PCIe; `offload` is the way back.  These
    three are of each GPU.
    """

    registry: BytesPerSecond = _rate()
    hub: BytesPerSecond = _rate()
    network: BytesPerSecond = _rate()
    disk: BytesPerSecond = _rate()
    page_cache: BytesPerSecond = _rate()
    peer: BytesPerSecond = _rate()
    host: BytesPerSecond = _rate()
    offload: BytesPerSecond = _rate()

    def of(self, path: str, gpus: int) -> float:
        """The rate of *path* for an engine with so many *gpus*."""
        rate: float = getattr(self, path)
        return rate * (gpus if path in ("peer", "host", "offload") else 1)


@frozen
class LayerTimes:
    """Seconds: `fixed`, for each `layer`, and more for a model with `experts`."""

    fixed: Seconds = _amount()
    layer: Seconds = _amount()
    experts: Seconds = _amount()

    def seconds(self, layers: float, experts: bool) -> float:
        """Those of a model with so many *layers*."""
        return self.fixed + self.layer * layers + self.experts * experts


@frozen
class CaptureTimes:
    """Seconds to capture CUDA graphs: `fixed`, for each `layer` of each graph, and `experts` for a model with some.

    Before a graph is captured its step runs, which takes as long as to read the weights `reads` times.
    """

    fixed: Seconds = _amount()
    layer: Seconds = _amount()
    experts: Seconds = _amount()
    reads: float = field(default=1.0, validator=validators.ge(0))

    def seconds(self, engine: EngineLoad) -> float:
        """Those of all graphs of *engine*; 0 where it has none."""
        each = self.layer * engine.layers + self.reads * engine.read
        return (self.fixed + self.experts * engine.experts + each * engine.graphs) if engine.graphs else 0.0


#: Ways to start: a process; one restored from a snapshot with its weights; an engine that sleeps on its GPU; or one of
#: which only the whole is known.
_MODES = ("process", "snapshot", "sleep_1", "sleep_2", "measured")
_WEIGHTS = ("network", "disk", "page_cache", "peer")


@frozen
class Startup:
    """How engines start on a machine: what is there already, and its figures.

    `mode` "process" starts a container.  "snapshot" restores a process that sleeps at level 1, with `snapshot` bytes
    beside its weights, from the `network`.  "sleep_1" wakes an engine whose weights are in host memory (vLLM's `/sleep`
    and `/wake_up`), "sleep_2" one that has dropped them and reads them anew.  Sleeping engines keep compiled code and
    graphs.  "measured" takes `ready` seconds whatever is started.

    A `node` is there unless it takes time to provision: then it comes with the first replica on it, and goes when none
    has been there for `node_idle` seconds (by default 10 min, the Cluster Autoscaler's --scale-down-unneeded-time).
    All of its GPUs are paid meanwhile.
    The `image` is "on_node", or is to "pull", `image_bytes` from the registry once for each node, or is to "stream", so
    that imports wait for it.  A checkpoint comes from `weights`, a path, after a
    `download` from the hub if asked for.  `compile_cache` is "warm" where vLLM finds its compiled code and
    kernels; the tables `*_cold` are what is added where it is "cold".
    """

    name: str
    source: str
    mode: str = field(validator=validators.in_(_MODES))
    image: str = field(validator=validators.in_(("on_node", "pull", "stream")))
    weights: str = field(validator=validators.in_(_WEIGHTS))
    compile_cache: str = field(validator=validators.in_(("warm", "cold")))
    paths: PathRates
    #: A layer with a state has so much of the traced code of one with attention: its mixer is one custom operator.
    state_layer: float = field(validator=[validators.ge(0), validators.le(1)])
    download: bool = False
    node: Seconds = _amount()
    node_idle: Seconds = _amount(600.0)
    image_bytes: Bytes = _amount()
    stream: Seconds = _amount()
    imports: Seconds = _amount()
    tokenizer: Seconds = _amount()
    tokenizer_entry: Seconds = _amount()
    model: Seconds = _amount()
    distributed: Seconds = _amount()
    dynamo: LayerTimes = LayerTimes()
    compile: LayerTimes = LayerTimes()
    compile_cold: LayerTimes = LayerTimes()
    profiling: LayerTimes = LayerTimes()
    profiling_cold: LayerTimes = LayerTimes()
    capture: CaptureTimes = CaptureTimes()
    capture_cold: LayerTimes = LayerTimes()
    deepgemm_warmup: Seconds = _amount()
    flashinfer_jit: Seconds = _amount()
    rest: Seconds = _amount()
    mount: Seconds = _amount()
    snapshot: Bytes = _amount()
    ready: Seconds = _amount()

    def __attrs_post_init__(self) -> None:
        if self.download and self.weights not in ("disk", "page_cache"):
            raise ValueError(f"a download goes to the disk or to the page cache, and weights = {self.weights!r} are not"
                             " read from there; leave download out, or read them from one of these")

    @property
    def nodes_come(self) -> bool:
        """Whether nodes come with replicas, and go; engines that sleep, and those that are measured, have theirs."""
        return self.node > 0 and self.mode in ("process", "snapshot")

    def parts(self, engine: EngineLoad) -> list[StartupPart]:
        """What a start of *engine* takes, one part after the other."""
        if self.mode == "process":
            return [*self._machine(), *self._process(engine), *self._checkpoint(engine), *self._engine(engine),
                    StartupPart("rest", self.rest)]
        if self.mode == "snapshot":
            return [*self._machine(), StartupPart("mount", self.mount),
                    self._moved("restore", engine.weights + self.snapshot, "network", engine),
                    *self._woken(engine)]
        if self.mode == "sleep_2":
            return [*self._checkpoint(engine), StartupPart("ready", self.ready)]
        return [StartupPart("ready", self.ready)] if self.mode == "measured" else [*self._woken(engine)]

    def sleep(self, engine: EngineLoad) -> list[StartupPart]:
        """What *engine* takes to fall asleep: at level 1 its weights go to host memory.

        At level 2 they go nowhere, and a snapshot has them already.
        """
        kept = self.mode not in ("sleep_2", "snapshot")
        return [self._moved("offload", engine.weights, "offload", engine)] if kept else []

    def switch(self, engine: EngineLoad, before: EngineLoad) -> list[StartupPart]:
        """What it takes until GPUs that serve the model of *before* serve that of *engine*, which sleeps on them."""
        return [*self.sleep(before), *self.parts(engine)]

    def _machine(self) -> Iterator[StartupPart]:
        yield StartupPart("node", self.node)
        yield (self._moved("image", self.image_bytes, "registry") if self.image == "pull" else
               StartupPart("image", 0.0))

    def _process(self, engine: EngineLoad) -> Iterator[StartupPart]:
        yield StartupPart("imports", self.imports + (self.stream if self.image == "stream" else 0.0))
        yield StartupPart("tokenizer", self.tokenizer + self.tokenizer_entry * engine.vocabulary)
        yield StartupPart("distributed", self.distributed if engine.gpus > 1 else 0.0)

    def _checkpoint(self, engine: EngineLoad) -> Iterator[StartupPart]:
        if self.download and self.mode == "process":
            yield self._moved("download", engine.weights, "hub")
        yield self._moved("weights", engine.weights, self.weights, engine)
        if self.mode == "process":
            yield StartupPart("model", self.model)

    def _engine(self, engine: EngineLoad) -> Iterator[StartupPart]:
        cold, experts = self.compile_cache == "cold", engine.experts
        layers = engine.layers - engine.states * (1 - self.state_layer)

        def by_layer(warm: LayerTimes, more: LayerTimes) -> float:
            return warm.seconds(layers, experts) + (more.seconds(layers, experts) if cold else 0.0)

        if engine.compiled:
            yield StartupPart("dynamo", self.dynamo.seconds(layers, experts))
            yield StartupPart("compile", by_layer(self.compile, self.compile_cold))
        if cold:
            yield StartupPart("flashinfer_jit", self.flashinfer_jit)
            yield StartupPart("deepgemm_warmup", self.deepgemm_warmup if engine.deep_gemm else 0.0)
        yield StartupPart("profiling", by_layer(self.profiling, self.profiling_cold))
        if engine.graphs:
            more = self.capture_cold.seconds(engine.layers, experts) if cold else 0.0
            yield StartupPart("capture", self.capture.seconds(engine) + more)

    def _woken(self, engine: EngineLoad) -> Iterator[StartupPart]:
        yield self._moved("wake", engine.weights, "host", engine)
        yield StartupPart("ready", self.ready)

    def _moved(self, name: str, amount: float, path: str, engine: EngineLoad | None = None) -> StartupPart:
        rate = self.paths.of(path, engine.gpus if engine else 1)
        return StartupPart(name, amount / rate, amount, path)


def seconds(parts: Sequence[StartupPart]) -> float:
    """How long *parts* take one after the other, nobody else on their paths."""
    return sum(part.seconds for part in parts)

"""The events of a run: frozen records, the only thing that results may read.

They tell of requests at a gateway and on their way through engines, of what a router saw when it chose, of KV that
moves between engines and tiers, and of steps.  A `StepBlock` has consecutive steps of an engine as columns.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import inf, nan
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.flow.batch import Batch, Batches
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.request import Request
from ksim.flow.steps import StepColumns, StepCost

#: Why a request that was aborted has ended: its client went while it was served or held, or before it tried again.
GONE, GONE_AFTER_REFUSAL = "its client has gone", "its client has gone, and did not try again"
#: Why one that an engine had has failed, or its client sends it again from its beginning.
CUT_OFF = "its engine was terminated at the end of the grace period"


@frozen
class Event:
    """Something that happened at `time`, in seconds from the start of the run."""

    time: float


@frozen
class Arrived(Event):
    """A request reached the front door."""

    request: Request


@frozen
class Rejected(Event):
    """A request was turned away, for the `reason` given."""

    request_id: int
    reason: str


@frozen
class Routed(Event):
    """A request was given to an engine; if it is split, `prefill_engine` computes its prompt."""

    request_id: int
    engine: int
    prefill_engine: int = -1


@frozen
class Received(Event):
    """A request reached its engine's inbox, through the front end."""

    request_id: int
    engine: int


@frozen
class Admitted(Event):
    """A request left the queue to run; the `cached` first of its tokens were found in the prefix cache.

    `known` is how many tokens it has by then: those of the prompt, and after a
    preemption (`again`) those generated so far.  Of several sequences, it is the first that left the queue.
    """

    request_id: int
    engine: int
    cached: int
    known: int
    again: bool = False
    sequence: int = 0


@frozen
class Preempted(Event):
    """A running request lost its cache blocks and waits to be recomputed."""

    request_id: int
    engine: int


@frozen
class Emitted(Event):
    """A run of output tokens: so many `tokens` from each of the engine's steps `first`, `first` + `every`, ...,
    `last`."""

    request_id: int
    engine: int
    first: int
    last: int
    every: int = 1
    tokens: int = 1


@frozen
class Finished(Event):
    """A request got its last token; `verified` steps of it have verified drafts, and `accepted` so many of these.

    Where it has several sequences, those that `Admitted` and `Preempted` do not tell of had so many `preemptions`.
    """

    request_id: int
    engine: int
    verified: int = 0
    accepted: int = 0
    preemptions: int = 0


@frozen
class Prefilled(Event):
    """The router has the answer of a split request's prefill engine, which computed its last prompt token in `step`."""

    request_id: int
    engine: int
    step: int


@frozen
class Transferred(Event):
    """The KV of a request has reached the engine `target`, all of it.

    `target` had blocks for it from `allocated` on, and its first byte left `source` at `began`.  On links of its own
    it would have taken `alone` seconds.
    """

    request_id: int
    source: int
    target: int
    allocated: float
    began: float
    alone: float
    bytes: float
    tokens: int


@frozen
class Released(Event):
    """The prefill engine let go of the blocks of a request that it held: they were read, or their `lease` ended."""

    request_id: int
    engine: int
    lease: bool = False


@frozen
class Failed(Event):
    """A request ended with an error, for the `reason` given."""

    request_id: int
    engine: int
    reason: str


@frozen
class AdapterLoaded(Event):
    """An engine's worker has launched the copies of an adapter of `size` bytes to its GPUs, which took it `seconds`.

    An adapter that was not in host memory was `read` from the disk first.
    """

    engine: int
    adapter: str
    size: float
    seconds: float
    read: bool = False


@frozen
class LinkUsed(Event):
    """From `time` on, flows use `rate` bytes/s of link number `link`."""

    link: int
    rate: float


@frozen
class LinkBuilt:
    """A link of a fleet, one way: what results must know to show its use.  `capacity` is in bytes/s."""

    link: int
    name: str
    kind: str
    capacity: float


@frozen
class Stepped(Event):
    """An engine's step is done, and its tokens are with the users at `time`.

    The batch was scheduled from `scheduled` on and its inputs `prepared`; the GPUs worked on it, or waited for its
    launches, from `start` to `end`; the engine had `taken` its tokens in, and the front end handed them on.  `waiting`,
    `running` and `blocks` (KV blocks in use) are as the scheduler left them.  `step_costs` has one entry per pipeline
    stage, each true of all `ranks` of the stage, and `scalings` how the SM clock scaled it; empty: at the boost clock.
    """

    engine: int
    index: int
    scheduled: float
    prepared: float
    start: float
    end: float
    taken: float
    batch: Batch
    waiting: int
    running: int
    blocks: int
    step_costs: tuple[StepCost, ...]
    scalings: tuple[ClockScaling, ...] = ()


#: Why ranks wait for others: these have longer batches, fuller experts, slower clocks, later hosts, slower links.
WAITS = ("requests", "experts", "clock", "host", "link")


@frozen(eq=False)
class RankTimeline:
    """A step rank by rank: when each `started`, (ranks,), and of each meeting when a rank `came` and `left`, and when
    its `latest` came, (ranks, meetings); nan where a rank had fewer.  `names` has the collective of each meeting, ""
    for the end of the step.  Where experts are drawn, `rows` has those of each group of GPUs that slices the same ones,
    (layers, groups).
    """

    names: Sequence[str]
    started: Any
    came: Any
    latest: Any
    left: Any
    rows: Any = None


@frozen
class RanksMet(Event):
    """The ranks of a pipeline stage, which are SimPy processes, have computed a step, from `start` to `time`.

    They are those of an engine, or of all that share experts, of which `engine` is the first.  `gpus` has their numbers
    in the fleet.  They were `busy` with kernels for some seconds, (ranks,), and waited for others, as `waits` says by
    cause, (causes of `WAITS`, ranks); the rest they spent in collectives.  A few steps have a `timeline`.
    """

    engine: int
    stage: int
    start: float
    gpus: Any
    busy: Any
    waits: Any
    timeline: RankTimeline | None = None


@frozen
class ExpertsMoved(Event):
    """EPLB has moved `experts` of a pipeline stage, `bytes` in all, from `start` to `time`; meanwhile its ranks waited.

    By the rows of its window, the fullest rank of a layer had `before` and has `after` times the mean, on average.
    """

    engine: int
    stage: int
    start: float
    experts: int
    bytes: float
    before: float
    after: float


@frozen
class EngineBuilt:
    """An engine as results need it: its GPUs, its cache and its peaks (SI units).

    A GPU that has had no work for `sleep_after` draws `sleep_watts` until its next step; by default, none ever sleeps.
    `reach` is how far, relatively, kernels' joules may be off in 9 of 10 cases, 0 where nobody knows.
    """

    engine: int
    name: str
    gpu: str
    ranks: int
    stages: int
    kv_blocks: int
    block_tokens: int
    peak_flops: float
    peak_bandwidth: float
    static_watts: float
    memory: float
    weights: float
    sleep_watts: float = 0.0
    sleep_after: float = inf
    limit_watts: float = inf
    reach: float = 0.0
    #: Engines with the same number of 0 or more are a data-parallel group: they share experts and step together.
    group: int = -1
    #: The lowest SM clock (Hz) of which it is known what it saves and costs, and the lowest that can be set; or nan.
    known_clock: float = nan
    least_clock: float = nan
    #: Its pool, what that does (prefill, decode, both), which replica of it, and what it serves in a fleet of several.
    pool: str = ""
    role: str = "both"
    replica: int = 0
    model: str = ""
    #: Tokens that its drafter proposes for each sequence and step, and slots for LoRA adapters on each GPU.
    drafted: int = 0
    max_loras: int = 0
    #: Where its KV is kept beyond its GPUs.
    tiers: tuple[str, ...] = ()
    #: Whether it has a vision encoder.
    encodes: bool = False
    #: When it began to be "starting", "ready", "draining", "warm" or "gone", in turn; empty for one that stays ready.
    life: tuple[tuple[float, str], ...] = ()
    #: Where nodes come and go: those that it lies on, and how long each, with all of its GPUs, outstays its engines.
    nodes: tuple[int, ...] = ()
    node_gpus: int = 0
    node_idle: float = 0.0


#: Too Many Requests and Service Unavailable: the HTTP status of whoever is refused for load, or was cut off.
TOO_MANY, UNAVAILABLE = 429, 503


@frozen
class Scaled(Event):
    """An autoscaler wants so many `replicas` of a `pool`, and not as `before`, for the `reason` given.

    `seen` is what it saw of the pool then, by the columns of scaling.parquet.
    """

    pool: str
    before: int
    replicas: int
    reason: str
    seen: Mapping[str, float]


@frozen
class Held(Event):
    """A request left the queue of the gateway, where it had waited `since` then: it was sent on, or refused."""

    request_id: int
    since: float


@frozen
class Refused(Event):
    """An attempt of a client was answered with a `status` other than 200, or cut off; after the `last`, it gives up."""

    request_id: int
    reason: str
    last: bool = False
    status: int = TOO_MANY


@frozen
class KvTransferParams:
    """vLLM's `kv_transfer_params`: prefill here for another engine, or take the prompt's KV from one.

    `transfer` is what both share, for their connectors alone.  If the first output token was `handed_over`, it is the
    last of the prompt here.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    transfer: Any = None
    handed_over: bool = False

    @property
    def tokenized(self) -> bool:
        """Whether the prompt comes as tokens: with the first token come those before it."""
        return self.do_remote_prefill and self.handed_over


@frozen(eq=False)
class Seen:
    """What a router saw of the `engines` that it chose from: columns by name, -1 where it did not ask.

    Metrics are shared with other choices until the next scrape.
    """

    engines: Sequence[int]
    books: Mapping[str, Sequence[int]]
    metrics: Mapping[str, Sequence[float]]
    hits: "array[int] | None" = None
    scores: "array[float] | None" = None

    @property
    def columns(self) -> dict[str, Sequence[float]]:
        """All columns."""
        return {**self.books, **self.metrics, **({} if self.hits is None else {"prefix_hit_tokens": self.hits}),
                **({} if self.scores is None else {"score": self.scores})}


@frozen
class Chosen(Event):
    """A router chose engines for a request by what it had `seen`; `attempt` counts earlier ones of its client."""

    request_id: int
    attempt: int
    engine: int
    prefill_engine: int
    seen: Seen


#: The tiers below the GPU: host memory, the disks of a node, and the storage of the fleet.
TIERS = ("cpu", "disk", "storage")


@frozen
class Copied(Event):
    """KV of a request has been copied from the tier `source` to the tier `target`, which an engine had `asked` for.

    It `began` once the copies ahead of it in the same direction had ended.  Of the `tokens` that a load brought to the
    GPU, `disk` and `storage` are those that had come to host memory from there for this request.  It is loaded `again`
    after a preemption, and for each `sequence` of the request.
    """

    request_id: int
    engine: int
    source: str
    target: str
    asked: float
    began: float
    bytes: float
    tokens: int
    disk: int = 0
    storage: int = 0
    again: bool = False
    sequence: int = 0


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Columns of `Stepped`: moments in seconds, and counts.
MOMENTS = ("time", "scheduled", "prepared", "start", "end", "taken")
COUNTS = ("waiting", "running", "blocks")


@frozen(eq=False, kw_only=True)
class StepBlock:
    """Steps `first`, `first` + 1, ... of an engine; seconds and counts are as in `Stepped`, in columns of (steps,).

    `costs` and `scalings` have one entry for each pipeline stage.
    """

    engine: int
    first: int
    time: Floats
    scheduled: Floats
    prepared: Floats
    start: Floats
    end: Floats
    taken: Floats
    batches: Batches
    waiting: Ints
    running: Ints
    blocks: Ints
    costs: Sequence[StepColumns]
    scalings: Sequence[ClockScaling]

    def __len__(self) -> int:
        return len(self.batches)

    @classmethod
    def of(cls, steps: Sequence[Stepped]) -> "StepBlock":
        """The block of *steps* of one engine, in the order of their index, none missing; there is at least one."""
        moments = np.array(list(map(attrgetter(*MOMENTS), steps)), np.float64).T.copy()
        counts = np.array(list(map(attrgetter(*COUNTS), steps)), np.int64).T.copy()
        stages = range(len(steps[0].step_costs))
        return cls(
            engine=steps[0].engine, first=steps[0].index, batches=Batches.of([step.batch for step in steps]),
            costs=[StepColumns.of([step.step_costs[stage] for step in steps]) for stage in stages],
            scalings=[ClockScaling.of([step.scalings[stage] if step.scalings else AT_BOOST for step in steps])
                      for stage in stages],
            **dict(zip(MOMENTS, moments, strict=True)), **dict(zip(COUNTS, counts, strict=True)))

    def steps(self) -> Iterator[Stepped]:
        """The steps one by one."""
        for row, batch in enumerate(self.batches):
            moments: dict[str, Any] = {name: float(getattr(self, name)[row]) for name in MOMENTS}
            counts: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in COUNTS}
            yield Stepped(**moments, **counts, engine=self.engine, index=self.first + row, batch=batch,
                          step_costs=tuple(costs[row] for costs in self.costs),
                          scalings=tuple(scaling[row] for scaling in self.scalings))


@frozen
class Decoded(Event):
    """In the engine's `step`, so many `sequences` of a request that has several decoded; they were so long together."""

    request_id: int
    engine: int
    step: int
    sequences: int
    length: int

"""What an engine's scheduler does at one moment, as plain values."""

from typing import Any

from attrs import field, frozen

from ksim.scheduling.job import ScheduledTokens, State


@frozen
class Share:
    """The tokens that request number `request` gets in a step, after `start` tokens computed before.

    The last `drafts` of them are drafted, of which so many will be `accepted`.  They are of a `prompt`, or else of a
    decode.  In an update, its token may be `lost`: the request was preempted since.
    """

    request: int
    tokens: int
    start: int
    samples: bool
    admitted: bool
    drafts: int = 0
    accepted: int = 0
    prompt: bool = False
    lost: bool = False

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def rejected(self) -> int:
        """Drafts that count as computed only until their step is back."""
        return self.drafts - self.accepted

    @property
    def yields(self) -> int:
        """Tokens that come of it, if its request does not end before."""
        return 0 if self.lost else self.samples * (1 + self.accepted)

    @classmethod
    def of(cls, entry: ScheduledTokens) -> "Share":
        return cls(entry.job.number, entry.tokens, entry.start, bool(entry.samples), entry.admitted,
                   entry.drafts, entry.accepted, prompt=entry.prompt)


@frozen
class RunningMoment:
    """SGLang's running batch just after a schedule.

    Its `members` are in order, and have `sampled` so many tokens each that have come back.  The queue is hidden while
    it is `full`.  Tokens were `reserved` for the outputs of those that ran when the queue was looked at.  The prompt of
    request `chunked` is cut.
    """

    members: tuple[int, ...]
    sampled: tuple[int, ...]
    full: bool
    reserved: float
    chunked: int | None


@frozen
class Moment:
    """The state of an engine just after a schedule, or after an update.

    An update processes the `shares` of the engine's step `index`.  `queue` lists the requests that could be admitted,
    as they waited before the schedule: (place in the policy's order, number, known tokens).  `live` counts all
    requests that were waiting or running then.  `known` has the known tokens of requests admitted in the schedule.
    `block_tables` has the blocks of each request.  `ref_counts` has the users of each block; it is empty for a cache
    that does not count them.
    """

    kind: str
    step: int
    now: float
    index: int
    shares: tuple[Share, ...]
    preempted: tuple[int, ...]
    finished: tuple[int, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    states: dict[int, State]
    block_tables: dict[int, tuple[int, ...]]
    ref_counts: tuple[int, ...]
    free: int
    in_flight: int
    known: dict[int, int] = field(factory=dict)
    queue: tuple[tuple[Any, int, int], ...] = ()
    live: int = 0
    ran: tuple[int, ...] = ()  # requests that ran before the schedule
    # With a KV connector: loads that begin (request, tokens found in the cache, tokens after the load, asynchronous),
    # and the requests whose loads have ended or failed, or whose blocks were sent.
    loads: tuple[tuple[int, int, int, bool], ...] = ()
    received: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    tokens: dict[int, int] = field(factory=dict)  # of those that wait; noted with a connector, and of SGLang's
    batch: RunningMoment | None = None  # of SGLang's scheduler, after a schedule

"""A request in progress on one engine.

One rule covers prefill, chunked prefill, decode, prefix hits and recomputation:
`computed` tokens catch up with `known` ones, and each time they do, one more
token becomes known.
"""

from enum import Enum

from attrs import define, field

from ksim.flow.request import Request
from ksim.foundation.moved import renamed
from ksim.kv_cache.cache import BlockTable


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@define
class Run:
    """Tokens that came from the engine's steps `first`, `first` + `every`, ..., `last`."""

    first: int
    last: int
    every: int = 0  # unknown while there is but one


@define(eq=False)
class Job:
    """`known` counts the tokens of the prompt and those sampled so far, `computed` those that are scheduled.

    `due` sampled tokens are on their way: with asynchronous scheduling a step is
    made while the one before it runs.  `sent` is the schedule that last put it in
    a batch; until that batch is back, some of its tokens are in flight.  The job ends after `output` tokens; the
    scheduler foresees an end after `limit` tokens only, which is the later one
    where a stop token ends the output.  `arrived` is when it reached the engine,
    in seconds; an engine lets no two arrive at once.
    """

    request: Request
    number: int
    output: int
    limit: int
    block_table: BlockTable
    known: int
    arrived: float = 0.0
    reads_cache: bool = True
    state: State = State.WAITING
    computed: int = 0
    due: int = 0
    preemptions: int = 0
    cached: int = 0  # tokens found in the prefix cache at its latest admission
    rank: int = -1  # the number of its latest admission
    step: int = -1  # the schedule it was last part of
    sent: int = -1
    decoding: bool = False  # did its latest chunk reach the end of what is known?
    passed_over: bool = False  # at admission, since it was last preempted: it had tokens in flight
    # While it is steady, the counts above are those before schedule `start`, `end` yields its last token, and `needs`
    # says where its blocks are counted (see ksim.scheduling.steady).
    steady: bool = False
    start: int = 0
    end: int = 0
    needs: int = -1
    emitted: list[Run] = field(factory=list)

    @classmethod
    def of(cls, request: Request, number: int, block_tokens: int, *, output: int | None = None,
           limit: int | None = None, block_table: BlockTable | None = None, arrived: float | None = None) -> "Job":
        """Make the job of *request*, the *number*-th of its engine; by default it yields `request.output` tokens.

        By default its *block_table* is one for BlockCache; every cache makes its own kind.
        """
        output = request.output if output is None else output
        return cls(request, number, output, output if limit is None else limit,
                   BlockTable(request.content(block_tokens)) if block_table is None else block_table, request.prompt,
                   request.arrival if arrived is None else arrived)

    holding = renamed("holding", "block_table")

    @property
    def sampled(self) -> int:
        """Output tokens so far."""
        return self.known - self.request.prompt

    @property
    def backlog(self) -> int:
        """Tokens it has yet to compute before the next one is sampled."""
        return self.known + self.due - self.computed

    def emit(self, count: int, index: int) -> None:
        """Note that *count* tokens came from the engine's steps up to and with *index*, one from each."""
        first = index - count + 1
        run = self.emitted[-1] if self.emitted else None
        if run is not None and (run.every or first - run.last) == first - run.last and (
                count == 1 or first - run.last == 1):
            run.every, run.last = first - run.last, index
        else:
            self.emitted.append(Run(first, index, every=1 if count > 1 else 0))

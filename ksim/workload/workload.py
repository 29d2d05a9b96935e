"""A workload, as a scenario states it."""

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import gt, optional

from ksim.flow.request import Request
from ksim.workload.reading import may_abort
from ksim.workload.replay import Replay
from ksim.workload.retries import Retries
from ksim.workload.row import Ledger
from ksim.workload.synthetic import Synthetic


@frozen
class Workload:
    """The requests that arrive: a recorded trace or synthetic requests.

    At most `max_concurrency` requests are in flight; the others wait at the client,
    as with `vllm bench serve --max-concurrency`.
    """

    replay: Replay | None = None
    """A recorded trace. Default: none."""
    synthetic: Synthetic | None = None
    """Requests drawn at random. Default: none."""
    max_concurrency: int | None = field(default=None, validator=optional(gt(0)))
    """Most requests in flight; the others wait at the client. Unit: requests. Default: no limit. Source: vllm bench
    serve --max-concurrency. Example: 64."""
    retries: Retries | None = None
    """What a client does when it is refused with status 429. Default: it gives up. Example: {max_retries = 2}."""

    def __attrs_post_init__(self) -> None:
        if (self.replay is None) == (self.synthetic is None):
            raise ValueError("a workload is either replay or synthetic")

    @property
    def may_abort(self) -> bool:
        """Whether clients may hang up on requests: whether a trace has a column that says when."""
        replay = self.replay
        return replay is not None and may_abort(replay.path, replay.format, replay.columns)

    def requests(self, seed: int, ledger: Ledger | None = None) -> Iterator[Request]:
        """Yield the requests by arrival, the first at 0 s; the same for the same *seed*.

        *ledger* counts what happens to a trace's rows.  Raises DataError for a trace
        that cannot be read, UnknownName for an unknown table of lengths.
        """
        if self.replay:
            return self.replay.requests(seed, ledger)
        assert self.synthetic, "a workload without a replay is synthetic"
        return self.synthetic.requests(seed)

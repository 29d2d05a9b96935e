"""A workload, as a scenario writes it."""

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import gt, optional

from ksim.flow.request import Request
from ksim.workload.ledger import Ledger
from ksim.workload.replay import Replay
from ksim.workload.synthetic import Synthetic


@frozen
class Workload:
    """What arrives: a recorded trace or made-up requests, one of them.

    `max_concurrency` requests at most are under way; the others wait outside
    until one ends, as `vllm bench serve --max-concurrency` has it.
    """

    replay: Replay | None = None
    synthetic: Synthetic | None = None
    max_concurrency: int | None = field(default=None, validator=optional(gt(0)))

    def __attrs_post_init__(self) -> None:
        if (self.replay is None) == (self.synthetic is None):
            raise ValueError("a workload is a replay or synthetic, one of them")

    def remarks(self, seed: int) -> list[str]:
        """What a user should hear before the run; raises what `requests` does."""
        return self.replay.remarks(seed) if self.replay else []

    def requests(self, seed: int, ledger: Ledger | None = None) -> Iterator[Request]:
        """Yield the requests by arrival, the first at 0 s; the same for the same *seed*.

        *ledger* takes the account of a trace's rows.  Raises DataError for a
        trace that cannot be read, UnknownName for a table that is not there.
        """
        if self.replay:
            return self.replay.requests(seed, ledger)
        assert self.synthetic, "a workload without a replay is synthetic"
        return self.synthetic.requests(seed)

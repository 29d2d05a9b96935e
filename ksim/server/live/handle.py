"""A request in flight in a live fleet."""

from attrs import define, field

from ksim.flow.request import Request
from ksim.scheduling.job import Job
from ksim.server.live.listener import Listener

__all__ = ["Handle"]


@define(eq=False)
class Handle:
    """A request in flight, and its listener."""

    request: Request
    listener: Listener
    got: int = field(default=0, init=False)  # tokens of the first sequence that a client has who is in time

    def count(self, job: Job, tokens: int) -> int:
        """Note so many further *tokens* of *job*; return how many of them a client gets.

        With a prefill pool, all come from the decode engine: also the first one, which the prefill engine has sampled.
        """
        if (params := job.kv_transfer_params) is not None:
            if params.do_remote_decode:
                return 0
            tokens += params.handed_over and not self.got
        if not job.request.sequence:
            self.got += tokens
        return tokens

"""A request in a live fleet."""

from attrs import define, field

from ksim.flow.request import Request
from ksim.scheduling.job import Job
from ksim.server.live.listener import Listener

__all__ = ["Handle"]


@define(eq=False)
class Handle:
    """A request in a live fleet, and who listens."""

    request: Request
    listener: Listener
    got: int = field(default=0, init=False)  # tokens of the first sequence

    def take(self, job: Job, count: int) -> int:
        """How many tokens the user gets with *count* tokens of *job*, which may serve a part of the request only.

        A token that the engine which prefilled it hands over comes with the first ones.
        """
        if (params := job.kv_transfer_params) is not None:
            if params.do_remote_decode:
                return 0
            count += params.handed_over and not self.got
        if not job.request.sequence:
            self.got += count
        return count

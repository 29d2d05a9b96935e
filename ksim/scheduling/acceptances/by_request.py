"""Each request has a rate of its own, from the trace."""

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, le, optional

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["ByRequest"]


@frozen
class ByRequest:
    """The trace says for each request with which chance a drafted token is accepted if those before it are, in its
    column acceptance; `rate` is for requests without.

        acceptance = {name = "by_request", rate = 0.7}
    """

    rate: float | None = field(default=None, validator=optional((ge(0), le(1))))

    def rates(self, k: int, request: Request) -> Sequence[float]:
        rate = self.rate if request.acceptance is None else request.acceptance
        if rate is None:
            raise ConfigError("serve.speculative_config.acceptance", f"request {request.id} of the trace has no"
                                                                     f" acceptance; give by_request a rate for those"
                                                                     f" without, or the trace a column")
        return [rate**place for place in range(1, k + 1)]

"""Routers: which engine serves a request.

To add one, add a file with an attrs class that has `choose`.  It sees engines
as `EngineView`, and answers with one of those it was given.

A class attribute says what it goes by, ``signals: ClassVar[tuple[str, ...]]``,
out of these:

    books       what it has sent itself, and the answers that passed through it
    metrics     what engines report of themselves, as of the last scrape
    kv_events   what is cached where, by the engines' KV events
    truth       the engines themselves, as they are now

A router without `signals` is taken to need the first three.  It gets an error
if it reads what it has not named, or if the scenario turns that off.  Another
class attribute, `source`, says whose rule it is: an address or a paper, and
the version.

One that goes by the requests alone, and of engines reads no more than their
`number` and `role`, has ``signals = ()``: `ksim run --jobs` can then run
replicas in processes of their own.  Each of them asks a router of its own
about every request, in their order, so equal questions must have equal
answers.

Two methods are called if a router has them, in the order of time, before its
next choice; engines are told by their numbers:

    on_first_token(request, number, now)    engine `number` has sent the first token of *request*
    on_end(request, number, now)            it has sent the last one

A third, on_gone(number), is called when an engine has gone that an autoscaler
does not want: one that comes back has nothing of what it had.

One more is called before the run: measured(models), with a StepModel of each
engine by its number (ksim/cluster/forecast.py), which is what an operator
can measure offline.

An answer may be None: the request is refused with status 429.  A router that
does that has an attribute `refusal`, which says why.

An attribute `scores`, if there is one after `choose`, has a number for each
engine that was given, for routing.parquet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ksim.flow.request import Request


class EngineView(Protocol):
    """What a router may know of an engine; all but its methods are plain attributes.

    Requests are sent, and their tokens come back, through the router, so its books are right at every moment.  Metrics
    are those of the last scrape that has arrived, and zeros before.  KV events arrive a delay after the batch that
    they come with.
    """

    @property
    def number(self) -> int: ...

    @property
    def role(self) -> str:
        """What its pool is for: prefill, decode or both."""
        ...

    @property
    def kv_blocks(self) -> int:
        """The blocks of its KV cache."""
        ...

    @property
    def block_tokens(self) -> int: ...

    # Of books.

    @property
    def outstanding(self) -> int:
        """Sequences given to it whose last token has not come back; a request has `n` of them."""
        ...

    @property
    def outstanding_tokens(self) -> int:
        """The prompt tokens of these sequences."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """The prompt tokens of those whose first token has not come back."""
        ...

    # Of metrics.

    @property
    def waiting(self) -> int:
        """Requests in its queue: vllm:num_requests_waiting."""
        ...

    @property
    def running(self) -> int:
        """Requests in its batches: vllm:num_requests_running."""
        ...

    @property
    def kv_usage(self) -> float:
        """The share of its KV cache in use: vllm:kv_cache_usage_perc."""
        ...

    @property
    def scraped_at(self) -> float:
        """When it was scraped; -inf before the first scrape has arrived."""
        ...

    def adapter_place(self, name: str) -> str:
        """Where it has the LoRA adapter *name*: "gpu", "memory", "disk", or "" if it does not know it."""
        ...

    # Of kv_events.

    def prefix_hit(self, request: Request) -> int:
        """How many tokens of the request's prompt are in its prefix cache."""
        ...

    def tier_hits(self, request: Request) -> Mapping[str, int]:
        """How many further tokens are in each tier of its KV, each continuing the one above, such as {"cpu": 256}."""
        ...

    # Of truth.

    @property
    def truth(self) -> Any:
        """The engine itself, as it is now."""
        ...


V = TypeVar("V", bound=EngineView)


class Router(Protocol):
    def choose(self, request: Request, engines: Sequence[V], now: float) -> V | None:
        """The engine for *request*, which is among *engines*, or None to refuse it."""
        ...


class Refusal(Exception):
    """A router refuses a request, for the reason given."""

"""KV connectors: what moves when between the two engines of a split request.

To add one, add a file with an attrs class that answers what `KvConnector` asks.
A connector says things, and does nothing: it touches neither caches nor the
clock.  Fields of the class are the keys of `kv_connector_extra_config`.

A scenario may name a connector by its file or by the `alias` that its engine
has for it, such as "NixlConnector".
"""

from typing import Protocol


class KvConnector(Protocol):
    """The timeline of a transfer from the engine P, which prefills, to the engine D, which decodes."""

    @property
    def alias(self) -> str:
        """The engine's own name for it."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether P and D get a request at the same time; otherwise D gets it with P's answer."""
        ...

    @property
    def by_chunk(self) -> bool:
        """Whether the KV of each chunk of a prompt leaves once the chunk is computed; otherwise all leaves at once.

        P then does not begin before D has blocks for the prompt, and takes all blocks of the prompt when it begins.
        """
        ...

    @property
    def pull(self) -> bool:
        """Whether D reads as soon as its worker has the load; otherwise P writes, once its own worker is told, too."""
        ...

    @property
    def hands_over_token(self) -> bool:
        """Whether the token that P samples is the user's first one; otherwise D computes the last prompt token
        again."""
        ...

    @property
    def equal_tensor_parallel(self) -> bool:
        """Whether P and D must have equal tensor-parallel sizes."""
        ...

    @property
    def lease(self) -> float:
        """For how many seconds P keeps blocks that nobody reads; with `by_chunk`, D reads them from the beginning."""
        ...

    @property
    def renews(self) -> bool:
        """Whether D prolongs the lease as long as it has the request."""
        ...

    @property
    def start(self) -> float:
        """Seconds from the moment when bytes may move until the first one does."""
        ...

    @property
    def share(self) -> float:
        """The share of the links' line rate that one transfer reaches."""
        ...

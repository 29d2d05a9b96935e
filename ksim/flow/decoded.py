"""What sequences of one request decode together."""

from attrs import frozen

from ksim.flow.events import Event

__all__ = ["Decoded"]


@frozen
class Decoded(Event):
    """In the engine's `step`, so many `sequences` of a request that has several decoded; they were so long together."""

    request_id: int
    engine: int
    step: int
    sequences: int
    length: int

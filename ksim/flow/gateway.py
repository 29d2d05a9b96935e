"""What happened to requests at a gateway, before a router chose an engine for them."""

from attrs import frozen

from ksim.flow.events import Event

#: Too Many Requests, the HTTP status of whoever is refused for load.
TOO_MANY = 429


@frozen
class Held(Event):
    """A request left the queue of the gateway, where it had waited `since` then: it was sent on, or refused."""

    request_id: int
    since: float


@frozen
class Refused(Event):
    """An attempt of a client was answered with a `status` other than 200; with `last`, it does not try again."""

    request_id: int
    reason: str
    last: bool = False
    status: int = TOO_MANY

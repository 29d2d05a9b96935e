"""The event of a copy of KV between tiers, and the tiers' names."""

from attrs import frozen

from ksim.flow.events import Event

#: The tiers below the GPU: host memory, the disks of a node, and the storage of the fleet.
TIERS = ("cpu", "disk", "storage")


@frozen
class Copied(Event):
    """KV of a request has been copied from the tier `source` to the tier `target`, which an engine had `asked` for.

    It `began` once the copies ahead of it in the same direction had ended.  Of the `tokens` that a load brought to the
    GPU, `disk` and `storage` are those that had come to host memory from there for this request.  It is loaded `again`
    after a preemption, and for each `sequence` of the request.
    """

    request_id: int
    engine: int
    source: str
    target: str
    asked: float
    began: float
    bytes: float
    tokens: int
    disk: int = 0
    storage: int = 0
    again: bool = False
    sequence: int = 0

"""LoRA adapters on their way: what a step has of them, and what it brings to the GPU."""

from attrs import frozen


@frozen
class AdapterLoad:
    """An adapter that a worker copies from host memory to a slot on the GPU before a step that needs it.

    It has matrices of this `rank` for `modules`, or for all if there are none.  One that was not in host memory is
    `read` from the disk first.
    """

    name: str
    rank: int
    modules: tuple[str, ...] = ()
    read: bool = False

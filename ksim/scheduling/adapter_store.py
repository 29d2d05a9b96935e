"""Where an engine's LoRA adapters are: on the GPU, in host memory, or on the disk.

The rules are those of vLLM's `LRUCacheWorkerLoRAManager` (0.33, lora/worker_manager.py).
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from attrs import define, evolve, field

from ksim.flow.request import AdapterLoad

__all__ = ["AdapterStore"]


@define(eq=False)
class AdapterStore:
    """`known` adapters, of which host memory keeps `kept` and the GPU has `slots`: those used last.

    What is on the GPU is in host memory too.  As `vllm serve` does, it loads all adapters in their order when it
    starts, so the last of them are there.
    """

    known: Mapping[str, AdapterLoad]
    slots: int
    kept: int
    _memory: OrderedDict[str, None] = field(factory=OrderedDict, init=False)
    _gpu: OrderedDict[str, None] = field(factory=OrderedDict, init=False)
    _places: Mapping[str, str] | None = field(default=None, init=False)  # None once they have changed

    def __attrs_post_init__(self) -> None:
        self.activate([*self.known][-self.kept:])

    @property
    def scarce(self) -> bool:
        """Whether there are more adapters than slots, so that a batch may have no room for one."""
        return len(self.known) > self.slots

    def place(self, name: str) -> str:
        """Where adapter *name* is: "gpu", "memory", "disk", or "" if there is none."""
        if name in self._gpu:
            return "gpu"
        return "memory" if name in self._memory else "disk" if name in self.known else ""

    @property
    def places(self) -> Mapping[str, str]:
        """Where each adapter is now, as a table that does not change later."""
        if self._places is None:
            self._places = {name: self.place(name) for name in self.known}
        return self._places

    def activate(self, names: Iterable[str]) -> tuple[AdapterLoad, ...]:
        """Have the adapters *names* on the GPU, in this order; return what must be loaded for that."""
        return tuple(load for name in names if (load := self._use(name)) is not None)

    def _use(self, name: str) -> AdapterLoad | None:
        """Have adapter *name* on the GPU, as the one used last; return the load, if it takes one."""
        read, self._places = name not in self._memory, None
        if read and len(self._memory) >= self.kept:
            oldest, _ = self._memory.popitem(last=False)
            self._gpu.pop(oldest, None)
        self._memory[name] = None
        self._memory.move_to_end(name)
        if name in self._gpu:
            self._gpu.move_to_end(name)
            return None
        if len(self._gpu) >= self.slots:
            self._gpu.popitem(last=False)
        self._gpu[name] = None
        return evolve(self.known[name], read=read)

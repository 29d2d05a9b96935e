"""Block ids as Mooncake's traces have them: whole numbers, equal where the blocks of prompts are equal."""

from collections.abc import Hashable
from itertools import count

from attrs import Factory, define

from ksim.flow.request import Request


@define
class HashIds:
    """Numbers the blocks of `size` tokens of prompts; what a request does not name gets a number of its own."""

    size: int
    _numbers: dict[Hashable, int] = Factory(dict)
    _next: "count[int]" = Factory(count)

    def of(self, request: Request) -> list[int]:
        """The ids of the blocks of *request*'s prompt, the partial last one included; none if it names nothing."""
        blocks = -(-request.prompt // self.size)
        names = request.chunks if self.size == request.chunk_tokens else request.content(self.size)
        if not names:
            return []
        known = [self._number(name) for name in names[:blocks if self.size == request.chunk_tokens
                                                      else request.prompt // self.size]]
        return known + [next(self._next) for _ in range(blocks - len(known))]

    def _number(self, name: Hashable) -> int:
        if name not in self._numbers:
            self._numbers[name] = next(self._next)
        return self._numbers[name]

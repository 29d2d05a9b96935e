"""How much of its prompts a trace could take from a cache that never forgets."""

from collections.abc import Hashable

from attrs import define, field, frozen

from ksim.flow.request import Request


@frozen
class Sharing:
    """Prompt tokens and chunks that stand in a prefix seen before, and requests that have some or nothing but such."""

    chunks: int
    hit_chunks: int
    hit_tokens: int
    requests_with_hit: int
    requests_all_hit: int


@define
class PrefixTree:
    """Every prefix of chunks seen so far, each as the number of its last chunk.

    Memory grows with the different chunks.
    """

    _numbers: dict[tuple[int, Hashable], int] = field(factory=dict)
    _chunks: int = 0
    _hit_chunks: int = 0
    _hit_tokens: int = 0
    _with_hit: int = 0
    _all_hit: int = 0

    def add(self, request: Request) -> None:
        """Count the chunks of the prompt that are known from its start on, and know all of the request's from now."""
        in_prompt = min(len(request.chunks), -(-request.prompt // request.chunk_tokens))
        hits = min(self._remember(request), in_prompt)
        self._chunks += in_prompt
        self._hit_chunks += hits
        self._hit_tokens += min(hits * request.chunk_tokens, request.prompt)
        self._with_hit += hits > 0
        self._all_hit += hits * request.chunk_tokens >= request.prompt

    def _remember(self, request: Request) -> int:
        """Return how many chunks from the start on were known already."""
        # Chunks of another size are others, whatever their names.
        place, known = -request.chunk_tokens, 0
        for depth, chunk in enumerate(request.chunks):
            following = self._numbers.get((place, chunk))
            if following is None:
                following = self._numbers[place, chunk] = len(self._numbers)
            else:
                known = depth + 1
            place = following
        return known

    def sharing(self) -> Sharing:
        return Sharing(self._chunks, self._hit_chunks, self._hit_tokens, self._with_hit, self._all_hit)

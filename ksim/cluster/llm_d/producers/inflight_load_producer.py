"""Counts the requests that engines have been sent, and the prompt tokens that they have yet to compute."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, optional

from ksim.cluster.llm_d.cycle import APPROXIMATE, Cycle, Load, Match
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

__all__ = ["InflightLoadProducer"]


@define(eq=False)
class InflightLoadProducer:
    """A request's tokens are those of its prompt that the engine was taken to lack when it was sent.

    They count until its first token.  With `add_estimated_output_tokens`, `output_ratio` times the prompt's tokens are
    added, `max_estimated_output_tokens` at most, and all count to its end.  A request that is split is gone from the
    engine that prefilled it with the first token.

    Source: llm-d-router, requestcontrol/dataproducer/inflightload (September 2026).
    """

    signals: ClassVar[tuple[str, ...]] = ("books",)
    name: str
    add_estimated_output_tokens: bool = False
    output_ratio: float = field(default=1.5, validator=ge(0))
    max_estimated_output_tokens: int | None = field(default=None, validator=optional(ge(0)))
    prefix_match_info_producer_name: str = APPROXIMATE
    sync_cross_replica_state: bool = True  # there is one picker
    _requests: dict[int, int] = field(factory=dict, init=False)
    _tokens: dict[int, int] = field(factory=dict, init=False)
    _added: dict[int, int] = field(factory=dict, init=False)
    _sent: dict[tuple[int, int], tuple[int, bool]] = field(factory=dict, init=False)

    def look(self, cycle: Cycle, engines: Sequence[EngineView]) -> None:
        match = cycle.matches.get(self.prefix_match_info_producer_name)
        plain = self._lacks(cycle.request, match, 0)
        self._added = added = dict.fromkeys([engine.number for engine in engines], plain)
        if match is not None and match.total:
            for number, blocks in match.blocks.items():
                added[number] = self._lacks(cycle.request, match, blocks)
        cycle.loads[self.name] = Load(self._requests, self._tokens, added)

    def sent(self, cycle: Cycle, number: int, profile: str) -> None:
        tokens = self._added[number]
        self._requests[number] = self._requests.get(number, 0) + 1
        self._tokens[number] = self._tokens.get(number, 0) + tokens
        self._sent[cycle.request.id, number] = tokens, profile == "prefill"

    def first_token(self, request: Request, number: int) -> None:
        tokens, prefills = self._sent.get((request.id, number), (0, False))
        if prefills:
            self.ended(request, number)
        elif tokens and not self.add_estimated_output_tokens:
            self._tokens[number] -= tokens
            self._sent[request.id, number] = 0, False

    def ended(self, request: Request, number: int) -> None:
        sent = self._sent.pop((request.id, number), None)
        if sent is not None:
            self._requests[number] -= 1
            self._tokens[number] -= sent[0]

    def _lacks(self, request: Request, match: Match | None, blocks: int) -> int:
        """The tokens of *request* that an engine has to compute that has *blocks* blocks of its prompt."""
        tokens = request.prompt
        if match is not None and match.block_tokens:
            tokens = max(match.total - blocks, 0) * match.block_tokens + max(
                tokens - match.total * match.block_tokens, 0)
        return tokens + self._output(request) if self.add_estimated_output_tokens else tokens

    def _output(self, request: Request) -> int:
        output = round(request.prompt * self.output_ratio)
        limits = [limit for limit in (request.max_tokens, self.max_estimated_output_tokens) if limit is not None]
        return min([output, *limits])

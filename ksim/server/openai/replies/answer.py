"""Answers: the made-up tokens of a sequence, and where a stop string or a stop token ends them."""

import json
from collections.abc import Sequence

from attrs import frozen

from ksim.server.openai.requests.fields import GenerateFields

__all__ = ["Answer", "escaped", "stopped_by"]


@frozen
class Answer:
    """The token `ids` of a sequence, and the `pieces` that they add to its text, also `escaped` as in JSON.

    `reason` is the finish_reason, and `stop` the stop string or stop token that has ended the answer, if one has.
    """

    ids: Sequence[int]
    pieces: Sequence[str]
    escaped: Sequence[bytes]
    reason: str
    stop: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def escaped(piece: str) -> bytes:
    """*piece* as it is written within a JSON string."""
    return json.dumps(piece)[1:-1].encode()


@frozen
class _Stop:
    """Where `stop` ends an answer: after `tokens` tokens, with its `size` characters behind those `before` it."""

    stop: str | int
    tokens: int
    before: int
    size: int


def stopped_by(answer: Answer, asked: GenerateFields) -> Answer:
    """*answer* up to the first stop token or stop string in it, after `min_tokens`."""
    stops = [*(asked.stop_token_ids or ()), *asked.stops]
    ends = [end for stop in stops if (end := _end(answer, stop, asked.min_tokens)) is not None]
    if not ends:
        return answer
    first = min(ends, key=lambda end: end.tokens)
    visible = first.before + (first.size if asked.include_stop_str_in_output else 0)
    shown = _cut(answer.pieces[:first.tokens], visible)
    return Answer(answer.ids[:first.tokens], shown, [*map(escaped, shown)], "stop", first.stop)


def _end(answer: Answer, stop: str | int, least: int) -> _Stop | None:
    """Where *stop* ends *answer*, which has *least* tokens before it can."""
    if isinstance(stop, int):
        at = next((at for at, token in enumerate(answer.ids) if token == stop and at >= least), None)
        return None if at is None else _Stop(stop, at + 1, sum(map(len, answer.pieces[:at])), len(answer.pieces[at]))
    minimum = sum(map(len, answer.pieces[:least]))
    at = answer.text.find(stop, max(0, minimum - len(stop) + 1))
    if at < 0:
        return None
    tokens, characters = 0, 0
    while characters < at + len(stop):
        characters += len(answer.pieces[tokens])
        tokens += 1
    return _Stop(stop, tokens, at, len(stop))


def _cut(pieces: Sequence[str], visible: int) -> list[str]:
    """*pieces* of which only the first *visible* characters are left."""
    kept, left = list[str](), visible
    for piece in pieces:
        kept.append(piece[:left])
        left -= len(kept[-1])
    return kept

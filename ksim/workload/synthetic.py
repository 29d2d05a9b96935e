"""Made-up requests: arrivals, lengths, shared prefixes, conversations."""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from attrs import field, frozen
from attrs.validators import gt, optional

from ksim.flow.request import Request
from ksim.foundation.rng import stream
from ksim.workload.arrivals import Arrivals
from ksim.workload.distributions import Fixed, Lengths, Times, seconds, tokens

_BLOCK = 4096


@frozen
class Prefixes:
    """System prompts: a conversation begins with the `tokens` tokens of one of `groups` groups, all as likely."""

    groups: int = field(validator=gt(0))
    tokens: int = field(validator=gt(0))


@frozen
class Sessions:
    """Conversations of so many `turns`, each `think` seconds after the answer to the one before it."""

    turns: Lengths
    think: Times = Fixed(0)


class _Conversation(NamedTuple):
    """One session, or a lone request."""

    number: int
    arrival: float
    turns: int
    group: int
    priority: int


class _Draws(NamedTuple):
    """What the turns of all conversations draw from, in turn."""

    ids: Iterator[int]
    prompts: Iterator[int]
    outputs: Iterator[int]
    thinks: Iterator[float]


@frozen
class Synthetic:
    """`count` requests drawn at random.

    `prompt` and `output` are the tokens that each request brings; before them
    stand its prefix and, in a session, all the turns before it with their
    answers.  `arrivals` are those of sessions where there are any: a turn after
    the first arrives with its session and waits for the turn before it.  No
    prompt and output together pass `max_tokens`: a session ends before, a first
    prompt is cut.  Each session or lone request has one of `priorities`, all as
    likely.  Tokens that can be shared are named in chunks of `chunk_tokens`.
    """

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    count: int = field(default=100, validator=gt(0))
    prefixes: Prefixes | None = None
    sessions: Sessions | None = None
    priorities: tuple[int, ...] = ()
    max_tokens: int | None = field(default=None, validator=optional(gt(1)))
    chunk_tokens: int = field(default=16, validator=gt(0))

    def __attrs_post_init__(self) -> None:
        if self.sessions and self.arrivals.exact:
            raise ValueError("arrivals cannot be exact with sessions, of which the number is not known before")

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield the requests by arrival, numbered from 0, the first at 0 s; the same for the same *seed*.

        Raises UnknownName or DataError for a table or trace that cannot be read.
        """
        draws = _Draws(itertools.count(), tokens(self.prompt, stream(seed, "workload.prompt"), "prompt"),
                       tokens(self.output, stream(seed, "workload.output"), "output"), self._thinks(seed))
        turns = (self._turns(conversation, draws) for conversation in self._conversations(seed))
        return itertools.islice(itertools.chain.from_iterable(turns), self.count)

    def _conversations(self, seed: int) -> Iterator[_Conversation]:
        times = self.arrivals.times(stream(seed, "workload.arrivals"), self.count)
        turns = (tokens(self.sessions.turns, stream(seed, "workload.turns"), "output") if self.sessions
                 else itertools.repeat(1))
        groups = _picks(range(self.prefixes.groups if self.prefixes else 1), stream(seed, "workload.prefix"))
        priorities = _picks(self.priorities or (0,), stream(seed, "workload.priority"))
        return map(_Conversation, itertools.count(), times, turns, groups, priorities)

    def _thinks(self, seed: int) -> Iterator[float]:
        return seconds(self.sessions.think if self.sessions else Fixed(0), stream(seed, "workload.think"))

    def _turns(self, conversation: _Conversation, draws: _Draws) -> Iterator[Request]:
        name = str(conversation.number) if self.sessions else ""
        context = self.prefixes.tokens if self.prefixes else 0
        for turn in range(conversation.turns):
            prompt, output = context + next(draws.prompts), next(draws.outputs)
            if self.max_tokens and prompt + output > self.max_tokens:
                if turn:
                    return
                output = min(output, self.max_tokens - 1)
                prompt = min(prompt, self.max_tokens - output)
            context = prompt + output
            yield Request(next(draws.ids), conversation.arrival, prompt, output, self._chunks(conversation, prompt, output),
                          self.chunk_tokens, conversation.priority, name, next(draws.thinks) if turn else 0.0)

    def _chunks(self, conversation: _Conversation, prompt: int, output: int) -> tuple[tuple[int, int], ...]:
        """Name the full chunks that another request can share: those of the prefix, and of the whole session."""
        shared = min(prompt, self.prefixes.tokens) // self.chunk_tokens if self.prefixes else 0
        names = _names(-1 - conversation.group, 0, shared) if shared else ()
        if not self.sessions:
            return names
        return names + _names(conversation.number, shared, (prompt + output) // self.chunk_tokens)


@lru_cache(maxsize=1024)
def _names(owner: int, first: int, last: int) -> tuple[tuple[int, int], ...]:
    return tuple((owner, chunk) for chunk in range(first, last))


def _picks(options: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    """Yield members of *options* for ever, all as likely."""
    while True:
        for place in rng.integers(len(options), size=_BLOCK).tolist():
            yield options[place]

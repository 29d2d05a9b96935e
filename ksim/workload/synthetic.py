"""Synthetic requests: arrivals, lengths, shared prefixes, conversations and LoRA adapters."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import isinf
from typing import NamedTuple, TypeVar

import numpy as np
from attrs import field, frozen
from attrs.validators import and_, ge, gt, le, optional

from ksim.flow.request import Request
from ksim.foundation.errors import DataError
from ksim.foundation.rng import stream
from ksim.foundation.units import LONGEST
from ksim.workload.arrivals import Arrivals
from ksim.workload.distributions import (
    MOST,
    Fixed,
    Formula,
    Lengths,
    Times,
    check_tokens,
    seconds,
    tokens,
)
from ksim.workload.images import Images
from ksim.workload.rows import MOST_SEQUENCES

#: More than any server holds.
MOST_ADAPTERS = 10**6


@frozen
class Adapters:
    """`count` adapters, called `name`-0, `name`-1 and so on, as popular as Zipf's law says.

    Adapter k is asked for in proportion to 1 / (k + 1)^`exponent`; 0 makes all equally popular.  A share `base` of the
    requests asks for no adapter.
    """

    count: int = field(validator=(gt(0), le(MOST_ADAPTERS)))
    """Number of adapters. Unit: adapters."""
    exponent: float = field(default=0.0, validator=(ge(0), le(10)))
    """Exponent of Zipf's law; 0 makes all adapters equally popular. Unit: none."""
    base: float = field(default=0.0, validator=(ge(0), le(1)))
    """Share of requests that ask for the base model. Unit: share."""
    name: str = "adapter"
    """What adapters are called, before their number: as an entry of `serve.lora_modules` with a `count`."""

    @property
    def shares(self) -> Sequence[float]:
        """The probability of each adapter, and last that of the base model."""
        weights = np.arange(1, self.count + 1, dtype=np.float64) ** -self.exponent
        return [*((1 - self.base) * weights / weights.sum()).tolist(), self.base]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order of `shares`."""
        return (*(f"{self.name}-{number}" for number in range(self.count)), "")


#: Names of chunks: the owner (a session, or a group of prefixes as a negative number), and the place of the chunk.
_Names = tuple[tuple[int, int], ...]
_T = TypeVar("_T")
_BLOCK = 4096
#: The most requests, and how many there are where nobody says.
MOST_REQUESTS, USUAL = 10**9, 100
#: The least weight of a tenant, and the inverse of the largest.
_LIGHTEST = 1e-9


@frozen
class Prefixes:
    """System prompts: each conversation begins with one of `groups` prompts of `tokens` tokens, all equally likely."""

    groups: int = field(validator=(gt(0), le(10**6)))
    """Number of system prompts, all equally likely. Unit: groups."""
    tokens: int = field(validator=(gt(0), le(10**6)))
    """Length of a system prompt. Unit: tokens."""


@frozen
class Sessions:
    """Conversations of `turns` turns, each `think` seconds after the answer before it."""

    turns: Formula
    """Turns of a session. Unit: turns."""
    think: Times = field(factory=lambda: Fixed(0))
    """Time from an answer to the next turn. Unit: s."""


class _Conversation(NamedTuple):
    """A session, or a single request."""

    number: int
    arrival: float
    turns: int
    prefix: _Names
    priority: int
    tenant: str
    adapter: str


class _Draws(NamedTuple):
    """The streams that the turns of all conversations draw from."""

    ids: Iterator[int]
    prompts: Iterator[int]
    outputs: Iterator[int]
    thinks: Iterator[float]


def most_of(arrivals: Arrivals, count: int | None) -> int:
    """The most requests that come with *arrivals*: *count*, or what stands for it."""
    return count or (MOST_REQUESTS if arrivals.changes or arrivals.share is not None else USUAL)


def check_number(arrivals: Arrivals, count: int | None) -> None:
    """Raise ValueError for *arrivals* that have no end, or take too long, where there are *count* requests."""
    rate, expected = arrivals.mean, arrivals.expected
    if count is None and arrivals.changes and expected > MOST_REQUESTS:
        key = "phases" if arrivals.phases else "points" if arrivals.points else "path"
        ends = "a length (for) in each phase, without repeat" if arrivals.phases else "leave out repeat"
        raise ValueError(f"arrivals.{key} have no end; set count, or {ends}" if isinf(expected) else
                         f"arrivals.{key}: {expected:,.0f} requests are more than {MOST_REQUESTS:,}; set count")
    if rate and isinf(expected) and most_of(arrivals, count) / rate > LONGEST:
        raise ValueError(f"arrivals.rate = {rate:g} requests/s: {most_of(arrivals, count):,} requests would take more"
                         f" than {LONGEST:g} s, which is 31 years")


def check_file(arrivals: Arrivals, count: int | None) -> None:
    """The same for those whose rates are in a file; raises DataError."""
    try:
        check_number(arrivals, count)
    except ValueError as error:
        raise DataError(str(arrivals.path), str(error)) from None


@frozen
class Synthetic:
    """Requests drawn at random, `count` of them.

    `prompt` and `output` are the tokens that each request adds; before them come
    its prefix and, in a session, all earlier turns with their answers.  `arrivals`
    are those of sessions, if there are any: a later turn arrives with its session
    and waits for the turn before it.  No request exceeds `max_tokens`: a session
    ends before it would, and a first prompt is cut.  Each session or single request
    has one of `priorities`, all equally likely, one of `tenants`, by weight, and one
    of `adapters`, by popularity.
    Tokens that can be shared are named in chunks of `chunk_tokens`.
    """

    arrivals: Arrivals
    """When requests, or sessions, arrive."""
    prompt: Lengths
    """Prompt tokens that each request adds. Unit: tokens."""
    output: Lengths
    """Output tokens. Unit: tokens."""
    count: int | None = field(default=None, validator=optional(and_(gt(0), le(MOST_REQUESTS))))
    """Total number of requests; fewer where the phases of `arrivals` end before. Unit: requests. Default: 100; with
    phases that end, all that arrive in them. Example: 1000."""
    prefixes: Prefixes | None = None
    """System prompts that requests share. Default: none. Example: {groups = 4, tokens = 512}."""
    sessions: Sessions | None = None
    """Conversations, each turn with all before it as its prefix. Default: every request stands alone.
    Example: {turns = {kind = "uniform", low = 2, high = 8}, think = {kind = "exponential", mean = "5 s"}}."""
    priorities: tuple[int, ...] = ()
    """Priorities of requests and sessions, all equally likely; the lowest number goes first. Unit: none.
    Example: [0, 1]."""
    tenants: Mapping[str, float] = field(factory=dict)
    """Tenants and their weights: how likely each is to send a request. Unit: none.
    Example: {free = 3.0, paid = 1.0}."""
    adapters: Adapters | None = None
    """LoRA adapters that requests and sessions ask for. Default: the base model. Example: {count = 64, exponent = 1.0}.
    """
    images: Images | None = None
    """Images after the text of requests. Default: none. Example: {base_items_per_request = 2}."""
    n: int = field(default=1, validator=(gt(0), le(MOST_SEQUENCES)))
    """Sequences that each request asks for, each with an output of its own. Unit: sequences. Source: vLLM's `n`."""
    beam_width: int = field(default=0, validator=(ge(0), le(MOST_SEQUENCES)))
    """Beams of the beam search that each request asks for; 0 is none. Unit: sequences. Source: vLLM."""
    prompt_logprobs: int | None = field(default=None, validator=optional(ge(-1)))
    """Ask for log-probabilities of prompts, and of so many likeliest tokens at each place; -1 is all of the vocabulary.
    Unit: tokens. Default: not asked for. Source: vLLM. Example: 1."""
    max_completion_tokens: int | None = field(default=None, validator=optional(gt(0)))
    """Most output tokens, which each request sends as its `max_tokens`: the scheduler expects as many, and does not
    foresee that a stop token ends a shorter `output`. Unit: tokens. Default: every output ends where the scheduler
    expects it. Source: OpenAI's API. Example: 1024."""
    ignore_eos: bool = False
    """Let no stop token end an output, and the scheduler know it. Source: vLLM and SGLang."""
    max_tokens: int | None = field(default=None, validator=optional(gt(1)))
    """Most tokens of a request, prompt and output: a session ends before it, a first prompt is cut. Unit: tokens.
    Default: no limit. Example: 8192."""
    chunk_tokens: int = field(default=16, validator=(gt(0), le(10**6)))
    """Tokens of a chunk, the unit in which prefixes are shared. Unit: tokens."""

    def __attrs_post_init__(self) -> None:
        if self.n > 1 and self.beam_width:
            raise ValueError(f"n is {self.n}, and a beam search returns beam_width = {self.beam_width} sequences; leave"
                             " out n")
        if self.arrivals.share is not None and self.count is not None:
            raise ValueError("count is that of workload.arrivals, of which arrivals.share is a part; set"
                             " workload.count")
        if self.sessions and self.arrivals.exact:
            raise ValueError("arrivals cannot be exact with sessions, because their number is not known in advance")
        for name, weight in self.tenants.items():
            if not _LIGHTEST <= weight <= 1 / _LIGHTEST:
                raise ValueError(f"tenants.{name} must be a weight from {_LIGHTEST:g} to {1 / _LIGHTEST:g}: {weight:g}")
        for side, lengths in (("prompt", self.prompt), ("output", self.output)):
            check_tokens(lengths, side)
        if self.arrivals.path is None:
            check_number(self.arrivals, self.count)

    @property
    def most(self) -> int:
        """The most requests: `count`, or what stands for it."""
        return most_of(self.arrivals, self.count)

    def requests(self, seed: int, times: Iterator[float] | None = None) -> Iterator[Request]:
        """Yield the requests by arrival, numbered from 0, the first at 0 s; the same for the same *seed*.

        Where they have a share of the arrivals of a mix, *times* are theirs.  Raises UnknownName or DataError for a
        table or trace that cannot be read.
        """
        if times is None:
            if self.arrivals.path is not None:
                check_file(self.arrivals, self.count)
            times = self.arrivals.times(stream(seed, "workload.arrivals"), self.most)
        draws = _Draws(itertools.count(), tokens(self.prompt, stream(seed, "workload.prompt"), "prompt"),
                       tokens(self.output, stream(seed, "workload.output"), "output"), self._thinks(seed))
        turns = (self._turns(conversation, draws) for conversation in self._conversations(seed, times))
        requests = itertools.islice(itertools.chain.from_iterable(turns), self.most)
        return self.images.attached(requests, seed) if self.images else requests

    def output_lengths(self, seed: int) -> Iterator[int]:
        """Draws of how many tokens a server's answers have, without end; raises as `requests` does."""
        return tokens(self.output, stream(seed, "server.output"), "output")

    def _conversations(self, seed: int, times: Iterator[float]) -> Iterator[_Conversation]:
        turns = (tokens(self.sessions.turns, stream(seed, "workload.turns"), "output") if self.sessions
                 else itertools.repeat(1))
        groups = range(self.prefixes.groups if self.prefixes else 1)
        prefixes = map(cache(self._prefix_names), _picks(groups, stream(seed, "workload.prefix")))
        priorities = _picks(self.priorities or (0,), stream(seed, "workload.priority"))
        tenants = _picks(tuple(self.tenants) or ("",), stream(seed, "workload.tenant"), tuple(self.tenants.values()))
        return map(_Conversation, itertools.count(), times, turns, prefixes, priorities, tenants, self._asked(seed))

    def _asked(self, seed: int) -> Iterator[str]:
        if self.adapters is None:
            return itertools.repeat("")
        return _picks(self.adapters.names, stream(seed, "workload.adapter"), self.adapters.shares)

    def _prefix_names(self, group: int) -> _Names:
        chunks = range(self.prefixes.tokens // self.chunk_tokens if self.prefixes else 0)
        return tuple((-1 - group, chunk) for chunk in chunks)

    def _thinks(self, seed: int) -> Iterator[float]:
        return seconds(self.sessions.think if self.sessions else Fixed(0), stream(seed, "workload.think"))

    def _turns(self, conversation: _Conversation, draws: _Draws) -> Iterator[Request]:
        session = str(conversation.number) if self.sessions else ""
        context, names = self.prefixes.tokens if self.prefixes else 0, conversation.prefix
        for turn in range(conversation.turns):
            prompt, outputs = context + next(draws.prompts), self._outputs(draws)
            output = max(outputs)
            if self.max_tokens and prompt + output > self.max_tokens:
                if turn:
                    return
                output = min(output, self.max_tokens - 1)
                prompt = min(prompt, self.max_tokens - output)
            context = prompt + min(outputs[0], output)
            names = self._extended(names, conversation.number, prompt, context)
            yield Request(
                id=next(draws.ids), arrival=conversation.arrival, prompt=prompt, output=output, chunks=names,
                chunk_tokens=self.chunk_tokens, priority=conversation.priority, session=session,
                delay=next(draws.thinks) if turn else 0.0, tenant=conversation.tenant,
                adapter=conversation.adapter, max_tokens=self.max_completion_tokens, n=self.n,
                outputs=tuple(min(each, output) for each in outputs) if self.n > 1 else (),
                prompt_logprobs=self.prompt_logprobs, beam_width=self.beam_width, ignore_eos=self.ignore_eos)

    def _outputs(self, draws: _Draws) -> list[int]:
        """The output tokens of each sequence of a request."""
        most = self.max_completion_tokens or int(MOST)
        return [min(next(draws.outputs), most) for _ in range(self.n)]

    def _extended(self, names: _Names, session: int, prompt: int, context: int) -> _Names:
        """Return *names* of the full chunks of the prompt; in a session, names of all its context."""
        names = names[:prompt // self.chunk_tokens]
        if not self.sessions:
            return names
        return names + tuple((session, chunk) for chunk in range(len(names), context // self.chunk_tokens))


def _picks(options: Sequence[_T], rng: "np.random.Generator", weights: Sequence[float] = ()) -> Iterator[_T]:
    """Yield members of *options* without end, drawn by *weights*, or all equally likely."""
    shares = np.array(weights) / sum(weights) if weights else None
    while True:
        places = rng.integers(len(options), size=_BLOCK) if shares is None else (
            rng.choice(len(options), size=_BLOCK, p=shares))
        for place in places.tolist():
            yield options[place]

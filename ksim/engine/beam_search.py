"""Beam search, as vLLM's front end runs it (0.33, entrypoints/generate/beam_search/online.py)."""

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, ClassVar

from attrs import define, evolve, field

from ksim.engine.engine import Engine, ParentRequest
from ksim.flow.request import Request
from ksim.foundation.rng import stream
from ksim.scheduling.job import Job, Run

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["BeamSearch"]

#: Names of the full blocks of a beam's tokens.
_Names = tuple[Hashable, ...]


@define(eq=False)
class BeamSearch(ParentRequest):
    """Sends each beam of `request` as a request of its own for one token, and the next beams when all tokens are back.

    The parent of each new beam is drawn uniformly among the beams.  Beams share the full blocks of what they have in
    common.  The user gets all beams with the last token.
    """

    at_once: ClassVar[bool] = True

    request: Request
    engine: Engine
    _steps: int = field(init=False)
    _beams: list[_Names] = field(init=False)
    _generated: int = field(default=0, init=False)  # tokens of each beam
    _sent: int = field(default=0, init=False)
    _last: int = field(default=-1, init=False)  # step
    _draws: "Generator" = field(init=False)

    @classmethod
    def of(cls, request: Request, engine: Engine, done: Callable[[], object]) -> "BeamSearch":
        """A search that has sent its first request."""
        search = cls(1, done, request, engine)
        search._send()
        return search

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        room = self.engine.scheduler.limits.max_model_len - self.request.prompt
        self._steps = min(self.request.max_tokens or self.request.output, room)
        self._beams = [self._prompt_names()]
        self._draws = stream(self.engine.seed, f"beams.{self.request.id}")

    def finish(self, job: Job) -> bool:
        self._last = max(self._last, job.emitted[-1].last)
        self._count(job)
        return self._generated + 1 == self._steps and not self._unfinished

    @property
    def emitted(self) -> Iterator[Run]:
        """All tokens of the beams, from the last step."""
        yield Run(self._last, self._last, 1, self.request.beam_width * min(self.request.output, self._steps))

    def __call__(self) -> None:
        """The token of another beam has come."""
        self.left -= 1
        if self.left:
            return
        self._generated += 1
        if self._generated == self._steps:
            self.done()
        else:
            self._fork()
            self._send()

    def _fork(self) -> None:
        """Choose the next beams: each is a token longer than its parent."""
        parents = self._draws.integers(len(self._beams), size=self.request.beam_width)
        fills = (self.request.prompt + self._generated) % self._block == 0
        self._beams = [(*self._beams[parent], *((("beam", self.request.id, self._generated, index),) if fills else ()))
                       for index, parent in enumerate(sorted(parents.tolist()))]

    def _send(self) -> None:
        self.left = self._unfinished = len(self._beams)
        for names in self._beams:
            self._sent += 1
            self.engine.submit(self._child(names), self)

    def _child(self, names: _Names) -> Request:
        """A request for the next token of the beam whose full blocks have these *names*."""
        return evolve(
            self.request, arrival=self.engine.env.now, prompt=self.request.prompt + self._generated, output=1,
            max_tokens=1, beam_width=0, chunks=names, chunk_tokens=self._block, sequence=self._sent - 1)

    @property
    def _block(self) -> int:
        """How many tokens have a name: those of a block, if blocks have several."""
        tokens = self.engine.scheduler.cache.block_tokens
        return tokens if tokens > 1 else self.request.chunk_tokens

    def _prompt_names(self) -> _Names:
        """The names of the full blocks of the prompt: those that others share, and its own."""
        full = self.request.prompt // self._block
        shared = tuple(self.request.content(self._block))[:full]
        return (*shared, *(("prompt", self.request.id, index) for index in range(len(shared), full)))

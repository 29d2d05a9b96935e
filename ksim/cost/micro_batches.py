"""Two micro-batches that overlap: when vLLM cuts a batch, where, and in which order the halves run on a GPU.

vLLM (0.33, docs/design/dbo.md) cuts the batch of every data rank into two halves of equally many tokens, padded to the
largest rank, where each rank has tokens enough: `dbo_decode_token_threshold` where all sequences decode, else
`dbo_prefill_token_threshold`.  If one rank cannot, none does (v1/worker/dp_utils.py).  The halves take turns on the
compute stream, and change over at each dispatch and each combine (model_executor/layers/fused_moe/modular_kernel.py).
With `c` seconds of compute and `x` of the all-to-all behind it, the turns of the halves alternate::

    start = max(compute stream free, end of this half's last all-to-all)
    free = start + c,  end of the all-to-all = max(free, end of the other half's) + x

That holds for both kinds of DeepEP's kernels.  The high-throughput ones are on a stream of their own.  The low-latency
ones send on the compute stream, and the other half receives for this one once it is done, before it sends itself.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from attrs import define, field, frozen

from ksim.cost.graphs import Graphs
from ksim.flow.batch import Batch, Contexts, Offsets

__all__ = ["DboTurn", "Halver", "MicroBatches", "interleaved", "waits"]


class DboTurn(NamedTuple):
    """A half computes for `compute` seconds, and then is in an all-to-all for `collective` seconds."""

    compute: float
    collective: float = 0.0


def interleaved(program_a: Sequence[DboTurn], program_b: Sequence[DboTurn]) -> float:
    """The seconds of two halves that take turns on one compute stream, the first of *program_a* first.

    A half computes when the other is not computing and its own last all-to-all has ended.  All-to-alls come one after
    the other.  The shorter program is over after its last turn.  This is the order of vLLM's two threads and streams
    (v1/worker/ubatching.py); the module's docstring has the recursion.
    """
    return _play(program_a, program_b)[0]


def waits(program_a: Sequence[DboTurn], program_b: Sequence[DboTurn]) -> tuple[list[float], list[float]]:
    """For each turn of both programs, the seconds for which the compute stream is idle until its all-to-all has ended.

    They and all compute seconds add up to `interleaved`.  With equally many turns, none is longer than its all-to-all.
    """
    _, waited = _play(program_a, program_b)
    return waited[0], waited[1]


def _play(*programs: Sequence[DboTurn]) -> tuple[float, list[list[float]]]:
    free = sent = 0.0  # when the compute stream is free, and when the last all-to-all has ended
    ended = [0.0, 0.0]
    waited: list[list[float]] = [[], []]

    def wait(half: int) -> None:
        nonlocal free
        idle = max(0.0, ended[half] - free)
        waited[half].append(idle)
        free += idle

    for number, both in enumerate(zip_longest(*programs)):
        for half, turn in enumerate(both):
            if turn is not None:
                if number:
                    wait(half)
                free += turn.compute
                ended[half] = free
                if turn.collective:
                    sent = ended[half] = max(free, sent) + turn.collective
    for half in sorted((0, 1), key=lambda half: ended[half]):
        if programs[half]:
            wait(half)
    return free, waited


@frozen
class MicroBatches:
    """When a step is cut in two, and on how many SMs the all-to-alls are meanwhile: 0 where they hold none.

    `decode` is the fewest tokens of a rank whose sequences all decode, `prefill` that of any other rank.
    """

    decode: int
    prefill: int
    sms: int = 0

    def padded(self, batch: Batch, tokens_by_rank: Sequence[int], graphs: Graphs) -> int:
        """The tokens of each rank together with padding where the step is cut in two; 0 where it is not.

        Of other ranks only the tokens are known: they are taken to decode if this one does.  No half may be empty on
        any rank.
        """
        uniform = not batch.chunks and batch.width == graphs.width
        tokens = tokens_by_rank or (batch.tokens,)
        if min(tokens) < max(2, self.decode if uniform else self.prefill):
            return 0
        most = max(graphs.of(batch)[1], graphs.padded(max(tokens)) or max(tokens))
        return most if most // 2 < min(tokens) else 0


@define(eq=False)
class Halver:
    """Cuts batches in two.  Sequences that decode on in the same halves keep the objects of their offsets."""

    _last: tuple[Offsets, int, Offsets, Offsets] | None = field(default=None, init=False)

    def cut(self, batch: Batch, size: int, padded: int) -> tuple[Batch, Batch]:
        """The first *size* tokens of *batch*, and the rest of them *padded*; a sequence may be in both.

        As in vLLM, decodes come first.  Neither half has rows of logits.
        """
        width, contexts = batch.width, batch.contexts
        whole = min(size // width, len(contexts.offsets))
        first, second = self._offsets(contexts.offsets, whole)
        room = size - whole * width
        rest: list[tuple[int, int]] = []
        if room and len(second):
            context, second = second[0] + contexts.shift, second.without(0)
            rest.append((width, context))
        halves: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        for new, context in (*rest, *batch.chunks):
            here = min(new, room)
            room -= here
            halves[0].extend([(here, context)] if here else [])
            halves[1].extend([(new - here, context + here)] if new > here else [])
        return (_half(batch, first, halves[0], size), _half(batch, second, halves[1], padded - size))

    def _offsets(self, offsets: Offsets, whole: int) -> tuple[Offsets, Offsets]:
        if self._last is None or self._last[0] is not offsets or self._last[1] != whole:
            self._last = offsets, whole, Offsets(offsets[:whole]), Offsets(offsets[whole:])
        return self._last[2:]


def _half(batch: Batch, offsets: Offsets, chunks: Sequence[tuple[int, int]], tokens: int) -> Batch:
    """A half of *batch* with so many padded *tokens*."""
    shift, width = batch.contexts.shift, batch.width
    if wide := [context for new, context in chunks if new == width]:
        offsets = offsets.plus([context - shift for context in wide])
        chunks = [(new, context) for new, context in chunks if new != width]
    return Batch(Contexts(offsets, shift), tuple(chunks), 0, tokens, width=width)

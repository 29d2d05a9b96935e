"""The batch that one step of an engine computes, and many batches as columns."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ksim.flow.request import AdapterLoad, Patches


class Offsets(tuple[int, ...]):
    """Whole numbers with their `sum` and their maximum (`most`), both 0 where there are none."""

    @classmethod
    def of(cls, values: Iterable[int]) -> "Offsets":
        """*values*, or the very same object if they are such."""
        return values if isinstance(values, Offsets) else cls(values)

    @cached_property
    def sum(self) -> int:
        return sum(self)

    @cached_property
    def most(self) -> int:
        return max(self, default=0)

    def plus(self, values: Sequence[int]) -> "Offsets":
        """These and some more *values*, of which there is one at least."""
        extended, most = Offsets((*self, *values)), max(values)
        extended.sum = self.sum + sum(values)
        extended.most = max(self.most, most) if self else most
        return extended

    def without(self, place: int) -> "Offsets":
        """These but for the one at *place*."""
        remaining, gone = Offsets(self[:place] + self[place + 1:]), self[place]
        remaining.sum = self.sum - gone
        if gone < self.most:
            remaining.most = self.most
        return remaining

    @cached_property
    def _ascending(self) -> tuple[list[int], list[int]]:
        """In order, and the sums of the first of them."""
        ordered = sorted(self)
        return ordered, [0, *accumulate(ordered)]

    def capped(self, most: int) -> int:
        """The sum where none counts for more than *most*."""
        ordered, sums = self._ascending
        within = bisect_right(ordered, most)
        return sums[within] + (len(self) - within) * most


def _offsets(values: Iterable[int]) -> Offsets:
    return Offsets.of(values)


@frozen
class Contexts:
    """The number of cached tokens of each of some sequences: its offset plus `shift`.

    Sequences that decode together grow together, so from step to step the
    offsets stay one object.
    """

    offsets: Offsets = field(default=Offsets(), converter=_offsets)
    shift: int = 0

    @property
    def total(self) -> int:
        return self.offsets.sum + len(self.offsets) * self.shift

    @property
    def longest(self) -> int:
        return self.offsets.most + self.shift if self.offsets else 0

    def capped(self, most: int) -> int:
        """The sum where none counts for more than *most*."""
        return self.offsets.capped(most - self.shift) + len(self.offsets) * self.shift

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[int]:
        return (offset + self.shift for offset in self.offsets)


#: A request's id, and how many of the tokens that it knew when it was admitted a step computes for it, on top of how
#: many; nobody's has the id -1.
Prompt = tuple[int, int, int]


@frozen
class Batch:
    """Sequences that each compute new tokens on top of tokens they have in the cache.

    To kernels nothing is a decode or a prefill by kind; what sets sequences apart
    is how many tokens they bring, so those with `width` new tokens stand on their own.
    Whose tokens they are matters to results only: `prompts` has those of prompts,
    or computed again, be they one or several to a sequence.
    """

    #: For each sequence with `width` new tokens: the tokens it has in the cache.
    contexts: Contexts
    #: For each other sequence: (new tokens, tokens it has in the cache).
    chunks: Sequence[tuple[int, int]]
    #: How many sequences reach the end of what they know, so that a token comes out.
    samples: int
    #: New tokens in all.
    tokens: int
    #: In the order of the batch, prompts and what is computed again; all other sequences decode.
    prompts: Sequence[Prompt] = field(default=(), eq=False, repr=False)
    #: New tokens of each sequence in `contexts`: 1, or 1 and the drafted tokens that it verifies.
    width: int = 1
    #: Drafted tokens among the new ones: each has a row of logits of its own.
    drafts: int = 0
    #: For each sequence whose drafter proposed some: how many the model accepts.
    accepted: Sequence[int] = field(default=(), eq=False, repr=False)
    #: What a vision encoder computes before: the images whose tokens are among those of this step for the first time.
    images: tuple[Patches, ...] = field(default=(), kw_only=True)
    #: Of each LoRA adapter in the batch, how many of the tokens are its own, the most first; () without adapters.
    adapters: Sequence[int] = field(default=(), kw_only=True)
    #: Adapters that are copied to the GPU before it.
    loads: Sequence[AdapterLoad] = field(default=(), eq=False, repr=False, kw_only=True)
    #: Where prompts ask for the log-probabilities of their tokens: of how many likeliest tokens at each place at most.
    prompt_logprobs: int | None = field(default=None, kw_only=True)
    #: How many there are; asked for several times a step.
    sequences: int = field(init=False, eq=False, repr=False)

    @sequences.default
    def _sequences(self) -> int:
        return len(self.contexts.offsets) + len(self.chunks)

    @classmethod
    def of(cls, *sequences: tuple[int, int], samples: int | None = None,
           prompts: Sequence[Prompt] | None = None, width: int = 1) -> "Batch":
        """Make a batch of (new, context) pairs; unless told otherwise, all of them sample.

        Those with *width* new tokens verify one less than that; of the others, those with several are prompts of
        nobody, unless told otherwise.
        """
        wide = tuple(context for new, context in sequences if new == width)
        chunks = tuple((new, context) for new, context in sequences if new != width)
        return cls(
            contexts=Contexts(wide), chunks=chunks, samples=len(sequences) if samples is None else samples,
            tokens=sum(new for new, _ in sequences),
            prompts=tuple((-1, new, context) for new, context in chunks if new > 1) if prompts is None else prompts,
            width=width, drafts=(width - 1) * len(wide),
        )

    @classmethod
    def parse(cls, decode: str = "", prefill: str = "") -> "Batch":
        """Make the batch of texts such as "64x1024" (64 sequences that decode after 1,024 tokens) and "512+0,256+128"
        (a chunk of 512 tokens after none, one of 256 after 128); raise ValueError for any other."""
        groups = [_pair(part, "x", "64x1024") for part in decode.split(",") if part.strip()]
        chunks = [_pair(part, "+", "512+0") for part in prefill.split(",") if part.strip()]
        if sum(count for count, _ in groups) > _SEQUENCES or max((max(pair) for pair in groups + chunks), default=0) > (
                _TOKENS):
            raise ValueError(f"a step has at most {_SEQUENCES:,} sequences, each of at most {_TOKENS:,} tokens")
        sequences = [(1, context) for count, context in groups for _ in range(count)] + chunks
        if not sequences or any(new < 1 for new, _ in sequences):
            raise ValueError("a batch needs at least one sequence, and each of them a new token")
        return cls.of(*sequences)

    @property
    def logits(self) -> int:
        """Rows that the head computes: one of each sequence, partial prompts too, as in vLLM, and one of each drafted
        token; none of a dummy step, which has neither a sample nor a prompt."""
        return self.sequences + self.drafts if self.samples or self.prompts else 0

    @property
    def prompt_logits(self) -> int:
        """Further rows of the head, for log-probabilities of prompts: vLLM computes them for all tokens of a step that
        has a chunk of a prompt that asks for them (0.33, v1/worker/gpu/sample/prompt_logprob.py)."""
        return 0 if self.prompt_logprobs is None else self.tokens


@define(eq=False)
class BatchRuns(Sequence[Batch]):
    """Batches in a row, as runs: a batch, and how many there are with it, each with one more token in the cache for
    each sequence.  A run of several only decodes."""

    runs: list[tuple[Batch, int]] = field(factory=list)
    _starts: list[int] = field(factory=list, init=False)
    _count: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._starts = [*accumulate((count for _, count in self.runs), initial=0)]
        self._count = self._starts.pop()

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "BatchRuns":
        """*batches* as runs: as they are known, or each on its own."""
        known = batches.batches if isinstance(batches, Batches) else batches
        return known if isinstance(known, BatchRuns) else cls([(batch, 1) for batch in known])

    @classmethod
    def after(cls, batch: Batch, count: int) -> "BatchRuns":
        """The *count* batches after *batch*, which only decodes."""
        return cls([(later(batch, 1), count)])

    def append(self, batch: Batch) -> None:
        self.runs.append((batch, 1))
        self._starts.append(self._count)
        self._count += 1

    def follow(self, batch: Batch, count: int) -> None:
        """Add the *count* batches after *batch*, which only decodes; it is the last one here, if there is any."""
        if not self.runs or batch.chunks or batch.prompts or batch.loads:
            self.append(later(batch, 1))
            count -= 1
        first, length = self.runs[-1]
        self.runs[-1] = first, length + count
        self._count += count

    def cut(self, count: int) -> "BatchRuns":
        """Take away the first *count* of them, and return those."""
        whole = bisect_right(self._starts, count) - 1 if count < self._count else len(self.runs)
        first, rest = self.runs[:whole], self.runs[whole:]
        if rest and (inside := count - self._starts[whole]):
            batch, length = rest[0]
            first.append((batch, inside))
            rest[0] = later(batch, inside), length - inside
        self.runs = rest
        self.__attrs_post_init__()
        return BatchRuns(first)

    def firsts(self) -> Iterator[tuple[int, Batch]]:
        """The first batch of each run, and its row."""
        return ((row, batch) for row, (batch, _) in zip(self._starts, self.runs, strict=True))

    def spread(self, columns: Any) -> Any:
        """*columns* of (..., runs) as columns of (..., batches)."""
        return columns.copy() if len(self.runs) == self._count else np.repeat(columns, self._lengths, axis=-1)

    @property
    def since_first(self) -> Any:
        """How many steps each batch is later than the first of its run: (batches,)."""
        return np.arange(self._count) - np.repeat(np.array(self._starts, dtype=np.int64), self._lengths)

    @property
    def _lengths(self) -> Sequence[int]:
        return [count for _, count in self.runs]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        place = range(self._count)[row]
        run = bisect_right(self._starts, place) - 1
        return later(self.runs[run][0], place - self._starts[run])

    def __iter__(self) -> Iterator[Batch]:
        return (later(batch, step) for batch, count in self.runs for step in range(count))


def later(batch: Batch, steps: int) -> Batch:
    """What *batch* is so many *steps* later, if it only decodes."""
    if not steps:
        return batch
    offsets, shift = batch.contexts.offsets, batch.contexts.shift + steps
    return Batch(Contexts(offsets, shift), (), len(offsets), len(offsets), adapters=batch.adapters)


#: What a batch in words may have: more than any engine takes.
_SEQUENCES, _TOKENS = 100_000, 10**7


def _pair(text: str, separator: str, example: str) -> tuple[int, int]:
    head, separated, tail = text.strip().partition(separator)
    if not separated or not head.isdecimal() or not tail.isdecimal():
        raise ValueError(f"expected something like {example}, not {text.strip()!r}")
    return int(head), int(tail)


Ints = NDArray[np.int64]
_NOTHING = np.zeros(0, np.int64)


@frozen(eq=False)
class Chunks:
    """The chunks of batches, in order, as columns of (chunks,): their new tokens and those that they have in the cache.

    `rows` are the batches with any, and `starts` is where the chunks of each begin.
    """

    new: Ints
    context: Ints
    rows: Ints
    starts: Ints
    batches: int

    @classmethod
    def of(cls, batches: BatchRuns) -> "Chunks":
        chunks = [(row, new, context) for row, batch in batches.firsts() if batch.chunks
                  for new, context in batch.chunks]
        if not chunks:
            return cls(_NOTHING, _NOTHING, _NOTHING, _NOTHING, len(batches))
        row, new, context = np.array(chunks, dtype=np.int64).T.copy()
        starts = np.concatenate(([0], np.flatnonzero(row[1:] != row[:-1]) + 1))
        return cls(new, context, row[starts], starts, len(batches))

    def sums(self, values: Ints) -> Ints:
        """*values* of (chunks,) added up in each batch: (batches,)."""
        return self._spread(np.add, values)

    def most(self, values: Ints) -> Ints:
        """The largest of *values* of (chunks,) in each batch, 0 where it has none: (batches,)."""
        return self._spread(np.maximum, values)

    def _spread(self, operation: np.ufunc, values: Ints) -> Ints:
        reduced = np.zeros(self.batches, dtype=np.int64)
        if len(values):
            reduced[self.rows] = operation.reduceat(values, self.starts)
        return reduced


@frozen(eq=False)
class Prompts:
    """The prompt chunks of batches, in order, as columns of (prompts,): whose each is, its new tokens, and those cached
    before them; and how many each batch has, (batches,)."""

    request: Ints
    new: Ints
    context: Ints
    counts: Ints

    @classmethod
    def of(cls, batches: BatchRuns, counts: Ints) -> "Prompts":
        """The chunks of *batches*, which have so many each."""
        prompts = [*chain.from_iterable(batch.prompts for batch, _ in batches.runs)]
        if not prompts:
            return cls(_NOTHING, _NOTHING, _NOTHING, counts)
        request, new, context = np.array(prompts, dtype=np.int64).T.copy()
        return cls(request, new, context, counts)


@frozen(eq=False)
class Batches(Sequence[Batch]):
    """Some of `batches`, and columns of (batches,): new tokens and samples; of sequences with `Batch.width` new tokens,
    how many (`decodes`), what they have cached in all (`total`), and the most of one (`longest`).

    `drafts` are drafted tokens among the new ones.  Some batches are `wide`: decodes in them have several tokens.
    """

    batches: BatchRuns
    tokens: Ints
    samples: Ints
    decodes: Ints
    total: Ints
    longest: Ints
    chunks: Chunks
    prompts: Prompts
    drafts: Ints
    wide: bool = False

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "Batches":
        """The columns of *batches*, counted once."""
        if isinstance(batches, Batches):
            return batches
        runs = BatchRuns.of(batches)
        counts = [(batch.tokens, batch.samples, len((each := batch.contexts).offsets), each.offsets.sum,
                   each.offsets.most, each.shift, len(batch.prompts), batch.width, batch.drafts)
                  for batch, _ in runs.runs]
        tokens, samples, decodes, total, longest, shift, prompts, width, drafts = runs.spread(
            np.array(counts, dtype=np.int64).reshape(-1, 9).T)
        shift = shift + runs.since_first
        return cls(
            batches=runs, tokens=tokens, samples=samples, decodes=decodes, total=total + decodes * shift,
            longest=np.where(decodes > 0, longest + shift, 0), chunks=Chunks.of(runs),
            prompts=Prompts.of(runs, prompts), drafts=drafts, wide=bool((width > 1).any()))

    @property
    def sequences(self) -> Ints:
        """The number of sequences of each batch."""
        if not len(self.chunks.new):
            return self.decodes
        return self.decodes + self.chunks.sums(np.ones_like(self.chunks.new))

    def verifications(self, positions: int) -> Ints:
        """In column 0 how many sequences of each batch verify drafted tokens, and in column i how many of those accept
        i of them or more, up to so many *positions*: (batches, 1 + positions)."""
        counts = np.zeros((len(self), 1 + positions), dtype=np.int64)
        for row in np.flatnonzero(self.drafts).tolist():
            lengths = np.bincount(self.batches[row].accepted, minlength=1 + positions)
            counts[row] = lengths[::-1].cumsum()[::-1]
        return counts

    @property
    def encoded(self) -> Ints:
        """How many images a vision encoder computes before each batch, and how many tokens these become: (batches, 2).
        """
        return np.array([(len(batch.images), sum(image.embeds for image in batch.images)) for batch in self.batches],
                        dtype=np.int64).reshape(-1, 2)

    def of_rows(self, rows: Ints) -> "Batches":
        """Some of them."""
        return Batches.of([self.batches[row] for row in rows.tolist()])

    def capped(self, most: int) -> Ints:
        """The sum of the contexts of sequences with `Batch.width` new tokens, each at most *most*: (batches,)."""
        sums = self.total.copy()
        for row in np.flatnonzero(self.longest > most).tolist():
            sums[row] = self.batches[row].contexts.capped(most)
        return sums

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, row: Any) -> Any:
        return self.batches[row]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


@frozen
class EncoderBatch(Batch):
    """All patches of some images in one forward pass; its rows of logits are the tokens that they become."""

    @property
    def logits(self) -> int:
        return sum(image.embeds for image in self.images)


def encoder_batch(images: Sequence[Patches]) -> EncoderBatch:
    """The batch of *images*, of which there is one at least."""
    tokens = sum(image.tokens for image in images)
    return EncoderBatch(contexts=Contexts(), chunks=((tokens, 0),), samples=0, tokens=tokens, images=tuple(images))

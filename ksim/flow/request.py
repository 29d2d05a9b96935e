"""Requests: what a user asks for, with the images and the adapters that it takes.

`BlockKeys` numbers the blocks of their tokens: one number for equal tokens after equal prefixes, as vLLM's block hashes
are.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

from attrs import define, evolve, field, frozen
from attrs.validators import ge, gt, le, optional


@frozen
class Image:
    """An image of `width` x `height` pixels after the first `at` tokens of a prompt's text.

    Equal `name`s mean equal pixels, in whatever request.  An image without a name is unlike any other.  If it is
    `counted`, the prompt's number of tokens has those of the image in it already.
    """

    width: int = field(validator=gt(0))
    height: int = field(validator=gt(0))
    at: int = field(default=0, validator=ge(0))
    name: Hashable = ""
    counted: bool = False


@frozen
class Patches:
    """The patches of an image, as an encoder sees it: `tiles` of `rows` x `columns` patches each.

    Each tile has `extra` class tokens beside its patches.  They become `embeds` tokens of the language model.
    """

    tiles: int
    rows: int
    columns: int
    embeds: int
    extra: int = 0

    @property
    def tokens(self) -> int:
        """The number of tokens in the encoder."""
        return self.tiles * (self.rows * self.columns + self.extra)

    def sequences(self, window: int = 0) -> Iterator[tuple[int, int]]:
        """Pairs of a number of sequences, each of which attends to itself, and their length.

        They are whole tiles, or squares of *window* x *window* patches, which are smaller at a tile's edges.
        """
        if not window:
            yield self.tiles, self.rows * self.columns + self.extra
            return
        for across, height in _cut(self.rows, window):
            for along, width in _cut(self.columns, window):
                yield self.tiles * across * along, height * width


def _cut(length: int, window: int) -> Iterator[tuple[int, int]]:
    """The number of pieces of each length that *length* is cut into; the last one may be shorter."""
    whole, rest = divmod(length, window)
    if whole:
        yield whole, window
    if rest:
        yield 1, rest


@frozen
class PlacedImage(Image):
    """An image in the prompt that a model sees: so many `tokens` from the `start`-th on stand for it.

    vLLM's `MultiModalFeatureSpec`.  The encoder replaces `patches.embeds` of them; the others are separators, the first
    `lead` of which come before.
    """

    start: int = field(default=0, kw_only=True)
    tokens: int = field(kw_only=True)
    patches: Patches = field(kw_only=True)
    lead: int = field(default=0, kw_only=True)

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def embeds(self) -> int:
        return self.patches.embeds

    def seen(self, first: int, end: int) -> bool:
        """Whether the prompt's tokens from the *first* to before *end* have any that the encoder replaces.

        Separators between tiles are taken to be behind all of them.
        """
        begin = self.start + self.lead
        return first < begin + self.embeds and begin < end


@frozen
class Request:
    """One turn of a conversation, or one call of an API.

    Traces seldom hold tokens, so ksim never does: a prompt is its length and
    the names of its pieces of `chunk_tokens` tokens, which suffices to share
    prefixes.  Equal names at equal places after equal prefixes mean equal
    tokens.  `chunks` may run past the prompt: it then names the output too, so
    that the next turn of a session finds it in the cache.

    `arrival` is in seconds from the start of the run.  A turn of a `session`
    starts no earlier, and no earlier than `delay` seconds after the end of the
    session's turn before it.  `tenant` is whose it is, for policies that share out.
    `acceptance` is the chance that a drafted token of its output is accepted, if it has one of its own.
    `images` come in the order of their places in the prompt; a model's processor turns them into `PlacedImage`s, and
    counts their tokens in `prompt`.
    `adapter` is the LoRA adapter that it asks for, the OpenAI API's `model`; "" is the base model.  In a fleet of
    several, `model` is the base model; "" is that of the scenario.  `workload` is the one of a mix that it is of.
    The scheduler expects `max_tokens` output tokens, by default as many as there will be: where a stop token ends the
    output before, it does not foresee that.  With `ignore_eos`, it knows that none will.
    The user asks for `n` sequences, each of `output` tokens, or of as many as `outputs` says; in an engine, each is a
    request of its own, and `sequence` is which one it is.
    With `prompt_logprobs`, the user asks for the log-probabilities of the prompt's tokens, and of so many likeliest
    tokens at each place: all of the vocabulary if -1.  A `beam_width` of 1 or more asks for a beam search.
    The client hangs up `aborted` seconds after it has sent the request, if it is not through by then.
    One that is `migrated` was cut off from another engine: the tokens that its user has are part of its prompt, unless
    its client has sent it again.
    """

    id: int
    arrival: float = field(validator=ge(0))
    prompt: int = field(validator=gt(0))
    output: int = field(validator=gt(0))
    chunks: Sequence[Hashable] = ()
    chunk_tokens: int = field(default=16, validator=gt(0))
    priority: int = 0
    session: str = ""
    delay: float = field(default=0.0, validator=ge(0))
    tenant: str = ""
    images: Sequence[Image] = ()
    acceptance: float | None = field(default=None, validator=optional((ge(0), le(1))))
    adapter: str = ""
    max_tokens: int | None = None
    n: int = 1
    outputs: Sequence[int] = ()
    sequence: int = 0
    prompt_logprobs: int | None = None
    beam_width: int = 0
    aborted: float | None = field(default=None, validator=optional(ge(0)))
    ignore_eos: bool = False
    model: str = ""
    workload: str = ""
    migrated: bool = False

    @property
    def output_tokens(self) -> int:
        """The output tokens of all sequences."""
        return sum(self.outputs) if self.outputs else max(self.n, self.beam_width) * self.output

    def children(self) -> "list[Request]":
        """Its sequences as requests of their own, with names for all of the prompt, which they share.

        A session goes on with the first of them: only that one's output has names.
        """
        whole = -(-self.prompt // self.chunk_tokens)
        names = (*self.chunks[:whole], *(("prompt", self.id, index) for index in range(len(self.chunks), whole)))
        lengths = self.outputs or [self.output] * self.n
        return [evolve(self, n=1, outputs=(), sequence=index, output=output,
                       chunks=self.chunks if not index and len(self.chunks) > whole else names)
                for index, output in enumerate(lengths)]

    @property
    def keyed(self) -> "Request":
        """The request as prefix caches know it: what one adapter computed is none of another's, nor of the base model.

        The first name has the adapter in it, as vLLM's block hashes have; names after it count only behind it.
        """
        if not self.adapter or not self.chunks:
            return self
        return evolve(self, chunks=((self.adapter, self.chunks[0]), *self.chunks[1:]))

    def content(self, block_tokens: int) -> Sequence[Hashable]:
        """Name the full blocks of *block_tokens* tokens that `chunks` covers: equal names, equal content."""
        if not self.chunks:
            return ()
        if self.chunk_tokens == block_tokens:
            return self.chunks[: self.named // block_tokens]
        blocks, per_chunk = self.named // block_tokens, self.chunk_tokens
        if per_chunk % block_tokens == 0:
            pieces = per_chunk // block_tokens
            return [(self.chunks[i // pieces], i % pieces) for i in range(blocks)]
        return [
            (i * block_tokens % per_chunk,
             *self.chunks[i * block_tokens // per_chunk: -(-(i + 1) * block_tokens // per_chunk)])
            for i in range(blocks)
        ]

    def keyed_ahead(self, block_tokens: int) -> "Request":
        """This request with names of blocks that stand for the first token after them, too.

        Keys of blocks do so in an engine with EAGLE.

        Nobody else has the name of what follows the last of them.
        """
        starts = range(block_tokens, self.named, block_tokens)
        following = (self.chunks[start // self.chunk_tokens] for start in starts)
        names = [*zip(self.content(block_tokens), following, strict=False)]
        return evolve(self, chunks=[*names, ("", self.id)] if names else (), chunk_tokens=block_tokens)

    @property
    def named(self) -> int:
        """The number of tokens that the chunks name; a last chunk that the prompt ends in names no output."""
        prompt_ends_it = (len(self.chunks) - 1) * self.chunk_tokens < self.prompt
        return min(len(self.chunks) * self.chunk_tokens, self.prompt + (0 if prompt_ends_it else self.output))


@frozen
class AdapterLoad:
    """An adapter that a worker copies from host memory to a slot on the GPU before a step that needs it.

    It has matrices of this `rank` for `modules`, or for all if there are none.  One that was not in host memory is
    `read` from the disk first.
    """

    name: str
    rank: int
    modules: tuple[str, ...] = ()
    read: bool = False


class _Numbers(dict[tuple[int, Hashable], int]):
    """Numbers of blocks by the number of the one before and their names; what is new has the next number."""

    def __missing__(self, block: tuple[int, Hashable]) -> int:
        number = self[block] = len(self)
        return number


@define(eq=False)
class BlockKeys:
    """Numbers blocks of `block_tokens` tokens by what is in them and before them.

    Whoever compares what is where (tiers of KV, routers, curves of hit rates) shares one of these, and keeps sets of
    numbers.  Keys count from 0, in the order in which blocks are first seen.
    """

    block_tokens: int
    _numbers: _Numbers = field(factory=_Numbers, init=False)
    _blocks: list[tuple[int, Hashable]] = field(factory=list, init=False)

    def of(self, request: Request, blocks: int | None = None) -> list[int]:
        """The keys of the first *blocks* blocks of *request*, by default of those whose tokens have names.

        Blocks beyond these are the request's alone.
        """
        names = request.keyed.content(self.block_tokens)
        key, numbers = -1, self._numbers
        keys = [key := numbers[key, name] for name in (names if blocks is None else names[:blocks])]
        for index in range(len(keys), blocks or 0):
            key = numbers[key, ("", request.id, request.sequence, index)]
            keys.append(key)
        return keys

    def runs(self, names: Iterable[Hashable], blocks: int) -> list[int]:
        """Keys of runs of so many *blocks* each, by the *names* of the first runs of a prompt."""
        key, numbers = -1, self._numbers
        return [key := numbers[key, (blocks, name)] for name in names]

    def after(self, before: int, name: Hashable) -> int:
        """The key of the block called *name* after the one with the key *before*; -1 stands for the beginning."""
        return self._numbers[before, name]

    def block(self, key: int) -> tuple[int, Hashable]:
        """The key of the block before the one with this *key*, and its name."""
        numbers, blocks = self._numbers, self._blocks
        if key >= len(blocks):
            blocks += [*islice(reversed(numbers), len(numbers) - len(blocks))][::-1]
        return blocks[key]


def leading(keys: Sequence[int], present: "set[int] | dict[int, object]") -> int:
    """The number of *keys*, from the first on, that are *present*."""
    for index, key in enumerate(keys):
        if key not in present:
            return index
    return len(keys)

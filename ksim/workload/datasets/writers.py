"""Data sets that benchmark clients read, and made-up texts with a given number of tokens, which share what the prompts
of requests share.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import gt

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError, DataError, MissingExtra
from ksim.workload.rows import follows
from ksim.workload.statistics import HashIds

__all__ = ["Mooncake", "Aiperf", "VllmCustom"]


@frozen
class Mooncake:
    """Mooncake's JSON lines: `timestamp` in ms, lengths, `hash_ids` of 512 tokens, sessions as Dynamo writes them.

    https://github.com/kvcache-ai/Mooncake

    Writes a request a line, with the length of its whole prompt.

    Block ids are of `block_size` tokens; other sizes than Mooncake's 512 have to be told to who reads the file.
    """

    block_size: int = field(default=512, validator=gt(0))

    reader: ClassVar[str] = "mooncake"
    reading: ClassVar[dict[str, Any]] = {}
    times: ClassVar[str] = "needs"
    fields: ClassVar[frozenset[str]] = frozenset({"chunks", "session", "delay"})

    @property
    def remarks(self) -> list[str]:
        if self.block_size == 512:
            return []
        return [f"block ids are of {self.block_size} tokens, not of Mooncake's 512; ksim reads them with --chunk-tokens"
                f" {self.block_size}"]

    def rows(self, requests: Iterable[Request], timed: bool) -> Iterator[dict[str, Any]]:
        ids, before = HashIds(self.block_size), None
        for request in requests:
            row = clocked(request, before)
            yield row | {"input_length": request.prompt, "output_length": request.output, "hash_ids": ids.of(request)}
            before = request


def clocked(request: Request, before: Request | None) -> dict[str, Any]:
    """The session of *request* and when it comes, in ms: a turn that waits for the one *before* has its delay alone."""
    row: dict[str, Any] = {"session_id": request.session} if request.session else {}
    if not follows(request, before):
        row["timestamp"] = milliseconds(request.arrival)
    if request.delay or "timestamp" not in row:
        row["delay"] = milliseconds(request.delay)
    return row


def milliseconds(seconds: float) -> float | int:
    """*seconds* in ms, as a whole number where it is one, to the nanosecond."""
    value = round(seconds * 1e3, 6)
    return int(value) if value.is_integer() else value


@frozen
class Aiperf:
    """AIPerf's `mooncake_trace`: as Mooncake's, but turns of a session have the length of what is new in them.

    https://github.com/ai-dynamo/aiperf: `aiperf profile --custom-dataset-type mooncake_trace --input-file FILE`

    Writes a request a line; AIPerf sends a turn behind all that was said before in its session.

    Block ids are of `block_size` tokens, those of the first turn of a session: later ones share it anyway.
    """

    block_size: int = field(default=512, validator=gt(0))

    reader: ClassVar[str] = "mooncake"
    reading: ClassVar[dict[str, Any]] = {"turns": "new"}
    times: ClassVar[str] = "takes"
    fields: ClassVar[frozenset[str]] = frozenset({"chunks", "session", "delay"})

    @property
    def remarks(self) -> list[str]:
        option = "" if self.block_size == 512 else f" --isl-block-size {self.block_size}"
        return [f"aiperf profile --custom-dataset-type mooncake_trace{option} --input-file FILE; --fixed-schedule sends"
                " at the recorded times"]

    def rows(self, requests: Iterable[Request], timed: bool) -> Iterator[dict[str, Any]]:
        ids, before = HashIds(self.block_size), None
        contexts: dict[str, int] = {}
        for request in requests:
            row = clocked(request, before)
            if not timed:
                row.pop("timestamp", None)
            context = contexts.get(request.session, 0) if request.session else 0
            new = request.prompt - context
            if new < 1:
                raise ConfigError("--to aiperf", f"request {request.id} of session {request.session!r} has a prompt of"
                                  f" {request.prompt:,} tokens, and {context:,} were said before it; AIPerf sends all"
                                  " of them again: write --to mooncake")
            row |= {"input_length": new, "output_length": request.output}
            if not context and (names := ids.of(request)):
                row["hash_ids"] = names
            contexts[request.session], before = request.prompt + request.output, request
            yield row


@frozen
class VllmCustom:
    """`vllm bench serve --dataset-name custom`: `prompt`, a made-up text of its length, and `output_tokens`; no times.

    https://docs.vllm.ai/en/latest/benchmarking/cli.html

    Writes texts of common English words, a token each; equal blocks of prompts are equal words.

    With a `tokenizer` (its tokenizer.json, or the folder), every text is counted with it, special tokens such as BOS
    included.
    """

    tokenizer: str = ""

    reader: ClassVar[str] = "vllm_custom"
    reading: ClassVar[dict[str, Any]] = {}
    times: ClassVar[str] = ""
    fields: ClassVar[frozenset[str]] = frozenset({"chunks"})

    @property
    def remarks(self) -> list[str]:
        counted = (f"prompts have exactly as many tokens as the trace says, counted with {self.tokenizer}, BOS included"
                   if self.tokenizer else "prompts are of common English words, counted as a token each, as most BPE"
                   " tokenizers have them, without BOS; --tokenizer FILE counts exactly")
        return [counted, "vllm bench serve --dataset-name custom --dataset-path FILE --custom-output-len -1"
                " --skip-chat-template --disable-shuffle --num-prompts -1; a chat template would add to the prompts",
                "the format has no times: vllm bench serve sends by --request-rate or --max-concurrency"]

    def rows(self, requests: Iterable[Request], timed: bool) -> Iterator[dict[str, Any]]:
        prose = Prose.of(self.tokenizer)
        for request in requests:
            yield {"prompt": prose.text(request), "output_tokens": request.output, "prompt_tokens": request.prompt}


#: Words that are a token each, with the space before them, in the vocabularies of GPT-2, Llama 3 and Qwen.
_TEXT = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so said what up its
about than into them can only other new some could time these two may then do first any my now such like our
over man me even most made after also did many must before through back years where much your way well down
should because each just those people how too little state good very make world still own see men work long get
here between both life being under never day same another know while last might us great old year off come since
against go came right used take three"""
WORDS = tuple(_TEXT.split())
#: Tokens of a piece of text that nothing names.
_PIECE = 64


@frozen
class Prose:
    """Texts of `words`, a token each.

    `special` tokens are put before them by the tokenizer that counts.
    """

    words: Sequence[str] = WORDS
    special: int = 0
    tokenizer: Any = None

    @classmethod
    def of(cls, tokenizer: str) -> "Prose":
        """Texts that the tokenizer at the path *tokenizer* counts; without one, every word is a token."""
        if not tokenizer:
            return cls()
        read = _read(Path(tokenizer))
        words = [word for word in WORDS if len(read.encode(f"the {word}", add_special_tokens=False).ids) == 2]
        if len(words) < 2:
            raise DataError(tokenizer, "has no common English words of one token each, of which texts could be made")
        return cls(words, len(read.encode("the").ids) - len(read.encode("the", add_special_tokens=False).ids), read)

    def text(self, request: Request) -> str:
        """The prompt of *request*; raises DataError for one that is shorter than the tokenizer's special tokens."""
        length = request.prompt - self.special
        if length < 1:
            raise DataError(f"request {request.id}", f"has a prompt of {request.prompt} tokens, but the tokenizer adds"
                                                     f" {self.special} special ones to every text")
        words: list[str] = []
        size = request.chunk_tokens if request.chunks else _PIECE
        for index in range(-(-length // size)):
            name = request.chunks[index] if index < len(request.chunks) else (request.id, index)
            words += self._piece(name, size)
        text = " ".join(words[:length])
        if self.tokenizer is not None and (found := len(self.tokenizer.encode(text).ids)) != request.prompt:
            raise DataError(f"request {request.id}", f"has a text of {found} tokens, not {request.prompt}: the"
                                                     " tokenizer joins words")
        return text

    def _piece(self, name: Hashable, size: int) -> list[str]:
        return Random(repr(name)).choices(self.words, k=size)


def _read(path: Path) -> Any:
    """The tokenizer at *path*; raises DataError for a file that is none, MissingExtra without the library."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("tokenizer", "--tokenizer") from None
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise DataError(str(path), "is not there; expected a model's tokenizer.json, or the folder with it")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(str(path), f"is no tokenizer.json: {error}") from None

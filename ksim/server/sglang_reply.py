"""Replies to SGLang's `/generate`, in its shapes: whole, or streamed with all of the text in each event."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from attrs import define, field, frozen

from ksim.flow.events import Admitted
from ksim.server.errors import ApiError
from ksim.server.live import Handle
from ksim.server.openai.formats import Logprobs
from ksim.server.openai.reply import MadeUpAnswer, PromptListener, Reply, to_json
from ksim.server.sglang_fields import GenerateBody, GenerateError, GeneratePrompt, single
from ksim.server.text import Tokenizer

__all__ = ["DONE", "GenerateReply", "StreamedGeneration", "WholeGeneration"]

DONE = b"data: [DONE]\n\n"


@frozen
class GenerationListener(PromptListener):
    """Tells a reply when tokens come, too."""

    def tokens(self, count: int, time: float, sequence: int) -> None:
        assert isinstance(self.reply, GenerateReply), "only replies to /generate tell times"
        self.reply.heard(self.first + sequence, time)
        super().tokens(count, time, sequence)


@define(eq=False)
class GenerateReply(Reply):
    """The reply to what is `asked_for` by the prompts of `asked`.

    `tokenizer` shows tokens; `track` is called with the number of each request on its way.
    """

    asked: GenerateBody = field(kw_only=True)
    asked_for: Sequence[GeneratePrompt] = field(kw_only=True)
    tokenizer: Tokenizer = field(kw_only=True)
    track: Callable[[int, "GenerateReply"], None] = field(kw_only=True)
    #: By prompt: tokens found in the cache, preemptions, and when it was admitted.
    hits: list[int] = field(init=False)
    retractions: list[int] = field(init=False)
    admitted: list[float] = field(init=False)
    numbers: dict[int, int] = field(factory=dict, init=False)  # the places of prompts, by the engines' requests
    _arrival: float = field(default=0.0, init=False)
    _first: dict[int, float] = field(factory=dict, init=False)  # by choice, as the next one
    _latest: dict[int, float] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.hits, self.retractions = [0] * len(self.prompts), [0] * len(self.prompts)
        self.admitted = [0.0] * len(self.prompts)

    @property
    def listeners(self) -> Sequence[PromptListener]:
        width = len(self.answers) // len(self.prompts)
        return [GenerationListener(self, number * width) for number in range(len(self.prompts))]

    def begun(self, handles: Sequence[Handle]) -> None:
        self._arrival = handles[0].request.arrival
        self.numbers = {handle.request.id: number for number, handle in enumerate(handles)}
        for number in self.numbers:
            self.track(number, self)

    def heard_admission(self, event: Admitted) -> None:
        """A request was admitted: only the first time counts."""
        if not event.again and not self.admitted[place := self.numbers[event.request_id]]:
            self.admitted[place], self.hits[place] = event.time, event.cached

    @property
    def rids(self) -> list[str]:
        """The id of each choice."""
        return [rid for prompt in self.asked_for for rid in prompt.rids]

    def heard(self, choice: int, time: float) -> None:
        """A choice gets tokens at this time."""
        self._first.setdefault(choice, time)
        self._latest[choice] = time

    def place(self, choice: int) -> int:
        """The place of the prompt of a choice."""
        return choice * len(self.prompts) // len(self.answers)

    def answer(self, choice: int) -> MadeUpAnswer:
        """What is shown: nothing, where no token was to be generated."""
        answer = self.answers[choice]
        return MadeUpAnswer((), (), (), "length") if self.asked_for[self.place(choice)].most == 0 else answer

    def meta(self, choice: int, tokens: int, last: bool) -> dict[str, Any]:
        """The `meta_info` of a choice with so many tokens; the *last* one says how it ended."""
        number = self.place(choice)
        told = {"id": self.rids[choice], "finish_reason": self._reason(choice) if last else None,
                "prompt_tokens": self.prompt_tokens[number], "weight_version": "default",
                "num_retractions": self.retractions[number], "reasoning_tokens": 0, "completion_tokens": tokens,
                "cached_tokens": self.hits[number]}
        if self.asked_for[number].logprobs is not None:
            told |= self._logprobs(number, self.answer(choice).ids[:tokens])
        return told | self._times(choice, tokens) if last else told

    def _times(self, choice: int, tokens: int) -> dict[str, float]:
        """The latencies of a choice, in simulated seconds."""
        first, last = self._first[choice], self._latest[choice]
        told = {"queue_time": self.admitted[self.place(choice)] - self._arrival,
                "e2e_latency": last - self._arrival, "first_token_latency": first - self._arrival}
        return told | ({"decode_throughput": (tokens - 1) / (last - first)} if last > first else {})

    def _reason(self, choice: int) -> dict[str, Any]:
        """How a choice ended; one that ended by itself has the last token of the vocabulary as its end."""
        answer = self.answer(choice)
        if answer.reason == "length":
            return {"type": "length", "length": len(answer.ids)}
        return {"type": "stop", "matched": self.tokenizer.vocabulary - 1 if answer.stop is None else answer.stop}

    def _logprobs(self, number: int, ids: Sequence[int]) -> dict[str, Any]:
        """Made-up log-probabilities of the prompt and of the tokens *ids*, in SGLang's shape."""
        prompt = self.asked_for[number]
        logprobs, start = Logprobs(self.tokenizer, prompt.logprobs or 0), prompt.logprobs_start
        before = self.prompts[number].ids[start:] if start >= 0 else []
        inputs, outputs = [*self._ranked(logprobs, before)], [*self._ranked(logprobs, ids)]
        told: dict[str, Any] = {
            "input_token_logprobs": [[None if not at else likely[0][0], *likely[0][1:]]
                                     for at, likely in enumerate(inputs)],
            "output_token_logprobs": [likely[0] for likely in outputs], "output_token_logprobs_length": len(outputs)}
        if prompt.logprobs:
            told["input_top_logprobs"] = [likely if at else None for at, likely in enumerate(inputs)]
            told["output_top_logprobs"] = outputs
        return told

    def _ranked(self, logprobs: Logprobs, ids: Sequence[int]) -> Iterator[list[list[Any]]]:
        shows = self.asked.return_text_in_logprobs
        for number in ids:
            yield [[value, other, self.tokenizer.piece(other) if shows else None]
                   for value, other in logprobs.ranked(number)]

    def failed(self, error: ApiError) -> None:
        if not self.over:
            self.over = True
            told = GenerateError(error.message, error.status) if error.status == 400 else error
            self.write_error(told)

    @abstractmethod
    def write_error(self, error: ApiError) -> None:
        """Write an error, and nothing more."""


@define(eq=False)
class WholeGeneration(GenerateReply):
    """A reply in one piece: an object for one sequence, or a list of them."""

    def tokens(self, choice: int, count: int) -> None:
        pass

    def complete(self) -> None:
        told = [self._told(choice) for choice in range(len(self.answers))]
        self.sink.whole(200, to_json(told[0] if single(self.asked) and len(told) == 1 else told))

    def _told(self, choice: int) -> dict[str, Any]:
        answer = self.answer(choice)
        told = {"text": answer.text, "output_ids": list(answer.ids), "meta_info": self.meta(
            choice, len(answer.ids), True)}
        ids = self.prompts[self.place(choice)].ids
        return told | ({"prompt_token_ids": list(ids)} if self.asked.return_prompt_token_ids else {})

    def write_error(self, error: ApiError) -> None:
        self.sink.fail(error)


@define(eq=False)
class StreamedGeneration(GenerateReply):
    """A reply in events, each of which has all of the text and ids up to there."""

    _begun: bool = field(default=False, init=False)
    _done: list[int] = field(init=False)
    _sent: list[int] = field(init=False)
    _texts: list[bytearray] = field(init=False)
    _ids: list[bytearray] = field(init=False)

    STREAMS: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        width = range(len(self.answers))
        self._done, self._sent = [0 for _ in width], [0 for _ in width]
        self._texts, self._ids = [bytearray() for _ in width], [bytearray() for _ in width]

    def tokens(self, choice: int, count: int) -> None:
        if self.over:
            return
        done = self._done[choice] = self._done[choice] + count
        last, sent = done >= len(self.answers[choice].ids), self._sent[choice]
        if last or not sent or done - sent >= self.asked_for[self.place(choice)].interval:
            self._sent[choice] = done
            self._start()
            self.sink.write(self._event(choice, sent, done, last))

    def _event(self, choice: int, begin: int, end: int, last: bool) -> bytes:
        answer, text, ids = self.answer(choice), self._texts[choice], self._ids[choice]
        text += b"".join(answer.escaped[begin:end])
        ids += b"".join(b"%d," % number for number in answer.ids[begin:end])
        more = b"" if single(self.asked) and len(self.answers) == 1 else b',"index":%d' % choice
        if self.asked.return_prompt_token_ids:
            more = b',"prompt_token_ids":' + to_json(list(self.prompts[self.place(choice)].ids)) + more
        meta = to_json(self.meta(choice, min(end, len(answer.ids)), last))
        parts = b'data: {"text":"', text, b'","output_ids":[', ids[:-1], b'],"meta_info":', meta, more, b"}\n\n"
        return b"".join(parts)

    def _start(self) -> None:
        if not self._begun:
            self._begun = True
            self.sink.start(200, "text/event-stream; charset=utf-8")

    def complete(self) -> None:
        self._start()
        self.sink.write(DONE, True)

    def write_error(self, error: ApiError) -> None:
        if isinstance(error, GenerateError) or self._begun:
            self._start()
            self.sink.write(error.event + DONE, True)
        else:
            self.sink.fail(error)

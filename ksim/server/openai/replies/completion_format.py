"""Replies of `/v1/completions`, in vLLM's shapes."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from attrs import frozen

from ksim.server.openai.replies.chunks import StreamedReply
from ksim.server.openai.replies.reply import Reply, WholeReply
from ksim.server.openai.replies.reply_format import ReplyFormat
from ksim.server.openai.requests.fields import CompletionFields
from ksim.server.openai.requests.prompts import Prompt

__all__ = ["CompletionFormat"]


@frozen
class CompletionFormat(ReplyFormat[CompletionFields]):
    """The answers to `prompts`, the same number to each.  `prompt_tokens` are the tokens of each prompt."""

    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[int]

    CHUNK_OBJECT: ClassVar[str] = "text_completion"
    OBJECT: ClassVar[str] = "text_completion"

    @property
    def reply(self) -> Reply:
        """The reply, streamed if the client asked for that."""
        common = self.head, self.prompts, self.prompt_tokens, self.answers
        if not self.asked.stream:
            return WholeReply(*common, self.body)
        return StreamedReply(*common, b"", self.chunks, partial(self.closing, sum(self.prompt_tokens)))

    @property
    def plain(self) -> bool:
        asked = self.asked
        return asked.logprobs is None and not (asked.echo or asked.return_token_ids or asked.wants_running_usage)

    def choice(self, choice: int, text: str, last: bool) -> dict[str, Any]:
        answer = self.answers[choice]
        return {"index": choice, "text": text, "logprobs": None, "finish_reason": answer.reason if last else None,
                "stop_reason": answer.stop if last else None, "prompt_token_ids": None, "token_ids": None,
                "weight_versions": None}

    def chunk(self, choice: int, begin: int, end: int) -> bytes:
        asked, answer, last = self.asked, self.answers[choice], end >= len(self.answers[choice].ids)
        shown, prompt = self._parts(choice, begin, end), self.prompts[self._prompt(choice)]
        made = self.choice(choice, "".join(shown[1]), last)
        if asked.logprobs is not None:
            start = 0 if begin == 0 else self._offset(choice, begin)
            made["logprobs"] = self.logprobs(asked.logprobs).completion(*shown, start, bool(asked.echo) and begin == 0)
        if asked.return_token_ids:
            made["token_ids"] = list(answer.ids[begin:end])
        if (asked.return_token_ids or asked.echo) and begin == 0:
            made["prompt_token_ids"] = list(prompt.ids)
        return self.chunk_of(made, last, self.prompt_tokens[self._prompt(choice)], end)

    def _prompt(self, choice: int) -> int:
        """The place of the prompt that a choice answers."""
        return choice * len(self.prompts) // len(self.answers)

    def _parts(self, choice: int, begin: int, end: int) -> tuple[Sequence[int], Sequence[str]]:
        """The token ids and pieces of text from *begin* on to before *end*, and before the first ones the echo."""
        answer, nothing = self.answers[choice], self.asked.max_tokens == 0
        ids, pieces = ([], []) if nothing else (list(answer.ids[begin:end]), list(answer.pieces[begin:end]))
        if not self.asked.echo or begin:
            return ids, pieces
        prompt = self.prompts[self._prompt(choice)]
        return [*prompt.ids, *ids], [*self._pieces(prompt), *pieces]

    def _pieces(self, prompt: Prompt) -> list[str]:
        """A prompt's text, token by token; if the client sent a text, all of it is in the first piece."""
        if prompt.text is not None and self.asked.logprobs is None:
            return [prompt.text, *[""] * (len(prompt.ids) - 1)]
        pieces = [self.tokenizer.piece(number) for number in prompt.ids]
        return [pieces[0].removeprefix(" "), *pieces[1:]] if pieces else []

    def _offset(self, choice: int, begin: int) -> int:
        """How many characters come before a token."""
        return sum(map(len, self._parts(choice, 0, begin)[1]))

    def whole_choice(self, choice: int) -> dict[str, Any]:
        asked, answer, prompt = self.asked, self.answers[choice], self.prompts[self._prompt(choice)]
        ids, pieces = self._parts(choice, 0, len(answer.ids))
        made = self.choice(choice, "".join(pieces), True)
        del made["prompt_token_ids"], made["token_ids"], made["weight_versions"]
        if asked.logprobs is not None:
            made["logprobs"] = self.logprobs(asked.logprobs).completion(ids, pieces, 0, bool(asked.echo))
        wanted = asked.logprobs if asked.prompt_logprobs is None and asked.echo else asked.prompt_logprobs
        return made | {
            "token_ids": list(answer.ids) if asked.return_token_ids else None,
            "prompt_logprobs": None if wanted is None else self.logprobs(wanted).prompt(prompt.ids),
            "prompt_token_ids": list(prompt.ids) if asked.return_token_ids else None,
            "routed_experts": None, "weight_versions": None}

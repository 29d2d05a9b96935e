"""Replies of `/v1/chat/completions`, in vLLM's shapes."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from attrs import frozen

from ksim.server.openai.replies.chunks import StreamedReply, sse_event
from ksim.server.openai.replies.reply import Reply, WholeReply, usage
from ksim.server.openai.replies.reply_format import ReplyFormat
from ksim.server.openai.requests.fields import ChatFields
from ksim.server.openai.requests.prompts import Prompt
from ksim.server.text.chat import Chat

__all__ = ["ChatFormat"]


@frozen
class ChatFormat(ReplyFormat[ChatFields]):
    """The answers to `chat`, whose prompt has `prompt_tokens` with its images."""

    chat: Chat
    prompt: Prompt
    prompt_tokens: int

    CHUNK_OBJECT: ClassVar[str] = "chat.completion.chunk"
    OBJECT: ClassVar[str] = "chat.completion"

    @property
    def reply(self) -> Reply:
        """The reply, streamed if the client asked for that."""
        common = self.head, [self.prompt], [self.prompt_tokens], self.answers
        if not self.asked.stream:
            return WholeReply(*common, self.body)
        closing = partial(self.closing, self.prompt_tokens)
        return StreamedReply(*common, b"".join(self._openings()), self.chunks, closing)

    @property
    def _role(self) -> str:
        return self.chat.messages[-1][0] if not self.chat.answered and self.chat.messages else "assistant"

    @property
    def _echo(self) -> str:
        """The last message, if it is echoed."""
        last = self.chat.messages[-1] if self.chat.messages else ("", "")
        return last[1] if self.asked.echo and last[0] == self._role else ""

    def _openings(self) -> list[bytes]:
        """The chunks before the first token: the role of each choice, and the echo."""
        deltas = [{"role": self._role, "content": ""}, *([{"content": self._echo}] if self._echo else [])]
        used = usage(self.prompt_tokens, 0) if self.asked.wants_running_usage else None
        chunks = []
        for number, delta in enumerate(deltas):
            ids = list(self.prompt.ids) if self.asked.return_token_ids else None
            more = {"prompt_token_ids": ids, "prompt_text": None} if not number else {}
            for choice in range(len(self.answers)):
                opening = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
                chunks.append(sse_event(self.table([opening], used, False, more)))
        return chunks

    @property
    def plain(self) -> bool:
        return not (self.asked.logprobs or self.asked.return_token_ids or self.asked.wants_running_usage)

    def choice(self, choice: int, text: str, last: bool) -> dict[str, Any]:
        answer = self.answers[choice]
        ends = {"finish_reason": answer.reason, "stop_reason": answer.stop} if last else {"finish_reason": None}
        more = {"weight_versions": None} if last else {}
        return {"index": choice, "delta": {"content": text}, "logprobs": None, **ends, "token_ids": None, **more}

    def chunk(self, choice: int, begin: int, end: int) -> bytes:
        asked, answer = self.asked, self.answers[choice]
        ids, pieces, last = answer.ids[begin:end], answer.pieces[begin:end], end >= len(answer.ids)
        made = self.choice(choice, "".join(pieces), last)
        if asked.logprobs:
            made["logprobs"] = self._logprobs(ids, pieces)
        if asked.return_token_ids:
            made["token_ids"] = list(ids)
        return self.chunk_of(made, last, self.prompt_tokens, end)

    def _logprobs(self, ids: Sequence[int], pieces: Sequence[str]) -> dict[str, Any]:
        """The log-probabilities of these tokens."""
        return self.logprobs(self.asked.top_logprobs).chat(ids, pieces)

    def prompt_fields(self) -> dict[str, Any]:
        asked, ids = self.asked, self.prompt.ids
        wanted = asked.top_logprobs or 0 if asked.prompt_logprobs is None and asked.echo else asked.prompt_logprobs
        return {"prompt_logprobs": None if wanted is None else self.logprobs(wanted).prompt(ids),
                "prompt_token_ids": list(ids) if asked.return_token_ids else None, "prompt_text": None}

    def whole_choice(self, choice: int) -> dict[str, Any]:
        answer = self.answers[choice]
        message = {"role": self._role, "content": self._echo + answer.text, "refusal": None, "annotations": None,
                   "audio": None, "function_call": None, "reasoning": None}
        return {"index": choice, "message": message,
                "logprobs": self._logprobs(answer.ids, answer.pieces) if self.asked.logprobs else None,
                "finish_reason": answer.reason, "stop_reason": answer.stop,
                "token_ids": list(answer.ids) if self.asked.return_token_ids else None, "routed_experts": None,
                "weight_versions": None}

"""Replies of `/v1/chat/completions`, in vLLM's shapes."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from attrs import frozen

from ksim.server.openai.replies.chunks import Chunked, event
from ksim.server.openai.replies.rendering import Rendering
from ksim.server.openai.replies.reply import Reply, Whole, usage
from ksim.server.openai.requests.fields import ChatFields
from ksim.server.openai.requests.prompts import Prompt
from ksim.server.text.chat import Chat

__all__ = ["ChatCompletion"]


@frozen
class ChatCompletion(Rendering[ChatFields]):
    """A completion of `chat`: answers to one prompt, of so many tokens with its images."""

    chat: Chat
    prompt: Prompt
    prompt_tokens: int

    KIND: ClassVar[str] = "chat.completion.chunk"

    @property
    def reply(self) -> Reply:
        """What the client gets, a stream if it asked for one."""
        common = self.head, [self.prompt], [self.prompt_tokens], self.answers
        if not self.asked.stream:
            return Whole(*common, self._body)
        return Chunked(*common, b"".join(self._openings()), self.chunks, partial(self.closing, self.prompt_tokens))

    @property
    def _role(self) -> str:
        return self.chat.messages[-1][0] if not self.chat.answered and self.chat.messages else "assistant"

    @property
    def _echo(self) -> str:
        """The last message, if it is to be repeated."""
        last = self.chat.messages[-1] if self.chat.messages else ("", "")
        return last[1] if self.asked.echo and last[0] == self._role else ""

    def _openings(self) -> list[bytes]:
        """The chunks before the first token: the role of each choice, and what is echoed."""
        told = [{"role": self._role, "content": ""}, *([{"content": self._echo}] if self._echo else [])]
        used = usage(self.prompt_tokens, 0) if self.asked.wants_running_usage else None
        chunks = []
        for number, delta in enumerate(told):
            ids = list(self.prompt.ids) if self.asked.return_token_ids else None
            more = {"prompt_token_ids": ids, "prompt_text": None} if not number else {}
            for choice in range(len(self.answers)):
                told_choice = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
                chunks.append(event(self.table([told_choice], used, False, more)))
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
        told = self.choice(choice, "".join(pieces), last)
        if asked.logprobs:
            told["logprobs"] = self._told(ids, pieces)
        if asked.return_token_ids:
            told["token_ids"] = list(ids)
        used = usage(self.prompt_tokens, end) if asked.wants_running_usage else None
        return event(self.with_choice(told, last, used))

    def _told(self, ids: Sequence[int], pieces: Sequence[str]) -> dict[str, Any]:
        """The log-probabilities of these tokens."""
        return self.logprobs(self.asked.top_logprobs).chat(ids, pieces)

    def _body(self, reply: Whole) -> dict[str, Any]:
        """The whole reply."""
        head, asked = self.head, self.asked
        wanted = asked.top_logprobs or 0 if asked.prompt_logprobs is None and asked.echo else asked.prompt_logprobs
        return {"id": head.id, "object": "chat.completion", "created": head.created, "model": head.model,
                "choices": [self._whole_choice(choice) for choice in range(len(self.answers))], "service_tier": None,
                "system_fingerprint": head.fingerprint, "usage": reply.usage,
                "prompt_logprobs": (
                    None if wanted is None else self.logprobs(wanted).prompt(self.prompt.ids)),
                "prompt_token_ids": list(self.prompt.ids) if asked.return_token_ids else None, "prompt_text": None,
                "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}

    def _whole_choice(self, choice: int) -> dict[str, Any]:
        answer = self.answers[choice]
        message = {"role": self._role, "content": self._echo + answer.text, "refusal": None, "annotations": None,
                   "audio": None, "function_call": None, "reasoning": None}
        return {"index": choice, "message": message,
                "logprobs": self._told(answer.ids, answer.pieces) if self.asked.logprobs else None,
                "finish_reason": answer.reason, "stop_reason": answer.stop,
                "token_ids": list(answer.ids) if self.asked.return_token_ids else None, "routed_experts": None,
                "weight_versions": None}

"""ShareGPT's JSON: conversations as text, without token counts or times: lengths are estimated, arrivals need a rate.

https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from attrs import field, frozen
from attrs.validators import gt, optional

from ksim.workload.jsonl import documents, keys, member
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, shown

__all__ = ["ShareGPT"]

_CHUNK_TOKENS = 16
#: The speakers that answer; all others ask.
_ANSWERS = ("gpt", "chatgpt", "assistant", "model", "bing", "bard")


@frozen
class ShareGPT:
    """Reads a conversation as a session; turns follow at once, and each prompt holds all that was said before.

    A text has one token per `characters_per_token` characters, rounded up; 4 is
    OpenAI's rule of thumb for English.  `turns` keeps only the first turns of a
    conversation; `vllm bench serve` uses one.
    """

    characters_per_token: float = field(default=4.0, validator=gt(0))
    turns: int | None = field(default=None, validator=optional(gt(0)))

    example = (
        '[{"id": "a", "conversations": [{"from": "human", "value": "How many legs does a spider have?"},\n'
        '   {"from": "gpt", "value": "Eight."}, {"from": "human", "value": "And a fly?"},\n'
        '   {"from": "gpt", "value": "Six, like all insects."}]},\n'
        ' {"id": "b", "conversations": [{"from": "human", "value": "Say {hello}"}, {"from": "gpt", "value": "hello"}]}]'
    )
    time_unit = ""
    empty = "skip"

    @property
    def remark(self) -> str:
        return f"token counts are estimated from the text, at {self.characters_per_token:g} characters a token"

    def recognises(self, first: str) -> bool:
        return {"conversations", "from", "value"} <= keys(first)

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        size = chunk_tokens or _CHUNK_TOKENS
        for number, talk in enumerate(documents(lines)):
            context = 0
            for new, output in islice(self._turns(talk, lines), self.turns):
                prompt, context = context + new, context + new + output
                chunks = tuple((number, index) for index in range(context // size))
                yield Row(float("nan"), prompt, output, chunks, size, session=f"{number}")

    def _turns(self, talk: dict[str, Any], lines: Lines) -> Iterator[tuple[int, int]]:
        """Yield, for each turn, the tokens that it adds to the prompt, and those of its answer."""
        messages = member(talk, ("conversations",), lines)
        if not isinstance(messages, list):
            raise lines.error(f"conversations is {shown(messages)}; expected a list of messages")
        new = 0
        for index, message in enumerate(messages):
            where = f"conversations[{index}]"
            if not isinstance(message, dict):
                raise lines.error(f"{where} is {shown(message)}; expected a message with from and value")
            speaker = member(message, ("from",), lines, where)
            tokens = self._tokens(member(message, ("value",), lines, where), f"{where}.value", lines)
            if speaker in _ANSWERS and new:
                yield new, tokens
                new = 0
            else:
                new += tokens

    def _tokens(self, text: Any, name: str, lines: Lines) -> int:
        if not isinstance(text, str):
            raise lines.error(f"{name} is {shown(text)}; expected a text")
        return -int(-len(text) // self.characters_per_token)

"""The JSON lines of `vllm bench serve --dataset-name custom`: `prompt` and `output_tokens`, without times.

https://docs.vllm.ai/en/latest/benchmarking/cli.html
"""

import math
from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import and_, ge, le

from ksim.workload.jsonl import first_object, objects
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, count, shown

__all__ = ["VllmCustom"]


@frozen
class VllmCustom:
    """Counts a prompt's tokens by its characters, unless `prompt_tokens` says them, as `ksim trace --to` writes it."""

    characters_per_token: float = field(default=4.0, validator=and_(ge(0.1), le(100.0)))

    example = (
        '{"prompt": "What is the capital of India?", "output_tokens": 10}\n'
        '{"prompt": "the of and to", "output_tokens": 152, "prompt_tokens": 4}\n'
    )
    time_unit = ""
    empty = "error"

    @property
    def remark(self) -> str:
        return (f"where a row has no prompt_tokens, a text has one token per {self.characters_per_token:g} characters,"
                " rounded up; chat templates are left out")

    def recognises(self, first: str) -> bool:
        row = first_object(first)
        return isinstance(row.get("prompt"), str) and not row["prompt"].isdecimal() and "arrival" not in row and (
            "output_tokens" in row)

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        for row in objects(lines):
            text = row.get("prompt")
            if not isinstance(text, str):
                raise lines.error(f"prompt is {shown(text)}; expected a text")
            counted = row.get("prompt_tokens")
            prompt = math.ceil(len(text) / self.characters_per_token) if counted is None else counted
            yield Row(math.nan, count(prompt, "prompt", lines), count(row.get("output_tokens"), "output_tokens", lines))

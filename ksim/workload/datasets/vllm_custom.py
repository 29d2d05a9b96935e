"""`vllm bench serve --dataset-name custom`: `prompt`, a made-up text of its length, and `output_tokens`; no times.

https://docs.vllm.ai/en/latest/benchmarking/cli.html
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from attrs import frozen

from ksim.flow.request import Request
from ksim.workload.prose import Prose

__all__ = ["VllmCustom"]


@frozen
class VllmCustom:
    """Writes texts of common English words, a token each; equal blocks of prompts are equal words.

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

"""Models of further passes of a step: a drafter's, or a vision encoder's.

Log-probabilities of a prompt's tokens (vLLM 0.33, v1/worker/gpu/sample/prompt_logprob.py and logprob.py).

The target's head computes logits of all tokens of the step, in chunks of 1,024 rows.  For each chunk, torch.topk finds
the likeliest tokens: it counts two digits of the 16-bit numbers and gathers, which reads the logits three times.  One
kernel goes through each row twice for its log-softmax, and another one once for the rank of the prompt's token.
What these write is too little to count.
"""

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from attrs import evolve, field, frozen

from ksim.compute.graph import Block, Op
from ksim.compute.model import Decoder, Model
from ksim.compute.model_ops import pointwise
from ksim.specs.shard import Shard

__all__ = ["FurtherModel", "ROWS", "prompt_logprobs"]


@frozen
class FurtherModel(Model):
    """A model whose launches have `prefix` before their labels, such as "draft.", to tell them from the target's."""

    prefix: str = field(kw_only=True)

    def body(self, tokens: int, shard: Shard, everywhere: int | None = None) -> list[Block]:
        return [Block(self._labelled(block.ops), block.repeat) for block in super().body(tokens, shard, everywhere)]

    def sampled(self, samples: int, shard: Shard) -> tuple[Op, ...]:
        return self._labelled(super().sampled(samples, shard))

    def _labelled(self, ops: Iterable[Op]) -> tuple[Op, ...]:
        return tuple(evolve(op, label=self.prefix + op.label) for op in ops)


#: Rows of a chunk: vLLM's CHUNK_SIZE.
ROWS = 1024

TOP = pointwise("argmax", "sV,sV,sV->s", "top_tokens")
SCORES = (pointwise("argmax", "sV,sV->s", "log_softmax", writes="fp32"), pointwise("argmax", "sV->s", "ranks"))


def prompt_logprobs(target: Decoder, top: bool) -> Decoder:
    """What runs beside *target* for a chunk of rows; *top* tokens are looked for only if any are asked for."""
    logits = takewhile(lambda op: _label(op) != "logits_cast", target.head[target.sampled:])
    return Decoder(target.sizes, (), (), (*logits, *((TOP,) if top else ()), *SCORES), target.max_length, sampled=0,
                   quantization=target.quantization, unquantized=target.unquantized)


def _label(operation: Any) -> str:
    return str(getattr(operation, "label", ""))

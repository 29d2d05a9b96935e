"""What kernels that move memory read and write, from the columns of a sweep: numbers, or arrays of them."""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

#: Bytes of a copy that one thread block moves.
PIECE = 32768


@frozen
class Moves:
    """Of a family: the columns that it needs, and from them its rows and the bytes that it reads and writes.

    A row is what a thread block works off, mostly a token.  Numbers are BF16, but for logits, which argmax takes in
    FP32.
    """

    columns: tuple[str, ...]
    rows: Callable[..., Any]
    reads: Callable[..., Any]
    writes: Callable[..., Any]

    def of(self, points: Any) -> tuple[Any, Any, Any]:
        """Rows, bytes read and bytes written of *points*."""
        values = [points[name] for name in self.columns]
        return self.rows(*values), self.reads(*values), self.writes(*values)


def _tokens(t: Any, *_: Any) -> Any:
    return t


MOVES: Mapping[str, Moves] = {
    "rms_norm": Moves(("t", "h"), _tokens, lambda t, h: 2 * (t + 1) * h, lambda t, h: 2 * t * h),
    "fused_add_rms_norm": Moves(("t", "h"), _tokens, lambda t, h: 2 * (2 * t + 1) * h, lambda t, h: 4 * t * h),
    "silu_mul": Moves(("t", "inter"), _tokens, lambda t, inter: 4 * t * inter, lambda t, inter: 2 * t * inter),
    "rope": Moves(("t", "hq", "hkv", "d"), _tokens, *2 * (lambda t, hq, hkv, d: 2 * t * (hq + hkv) * d,)),
    "kv_write": Moves(("t", "hkv", "d"), _tokens, *2 * (lambda t, hkv, d: 4 * t * hkv * d,)),
    "argmax": Moves(("t", "vocab"), _tokens, lambda t, vocab: 4 * t * vocab, lambda t, vocab: 4 * t),
    "quantize": Moves(("t", "h"), _tokens, lambda t, h: 2 * t * h, lambda t, h: t * h),
    "copy": Moves(("bytes",), lambda size: -(-size // PIECE), *2 * (lambda size: size,)),
}

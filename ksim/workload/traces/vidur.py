"""Vidur's CSV: arrived_at in seconds, num_prefill_tokens, num_decode_tokens; Frontier adds block_hash_ids.

https://github.com/microsoft/vidur and https://github.com/NetX-lab/Frontier
"""

from collections.abc import Hashable, Iterator

from ksim.workload.lines import Lines
from ksim.workload.rows import Row, chunk_names, columns, count, header, id_list, integer, moment

__all__ = ["Vidur"]

_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_CHUNK_TOKENS = 16


class Vidur:
    """Reads the traces of both simulators.

    Frontier's `session_id` chooses a replica and does not order the rows, so it is
    not a session here.  Without `block_hash_ids` it means that prompts hold only
    what is new to their session, which is an error.
    """

    example = (
        "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n"
        "2.5,32,2,7,11|22\n"
        "2.75,20,3,7,11|33\n"
    )

    time_unit = "s"
    empty = "error"

    def recognises(self, first: str) -> bool:
        return set(_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        _refuse_partial_prompts(lines)
        size = chunk_tokens or _CHUNK_TOKENS
        for time, tokens, output, priority, ids in columns(lines, _COLUMNS, ("priority", "block_hash_ids")):
            prompt = count(tokens, "num_prefill_tokens", lines)
            yield Row(moment(time, "arrived_at", lines), prompt, count(output, "num_decode_tokens", lines),
                      _blocks(ids, prompt, size, lines), size, integer(priority, "priority", lines))


def _refuse_partial_prompts(lines: Lines) -> None:
    names = header(lines.first())
    if "session_id" in names and "block_hash_ids" not in names:
        raise lines.error("has session_id without block_hash_ids, so each prompt holds only what is new to its "
                          "session; write whole prompts under the columns arrival,prompt,output,session")


def _blocks(text: str, prompt: int, size: int, lines: Lines) -> tuple[Hashable, ...]:
    """Parse ids such as ``11|22`` or ``[11, 22]``."""
    ids = [integer(name, "block_hash_ids", lines) for name in id_list(text, "block_hash_ids", lines)]
    return chunk_names(ids, prompt, size, lines)

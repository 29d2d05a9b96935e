"""Requests as the lines of a trace file."""

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence

from ksim.flow.request import Request

#: The columns of the plain format.
COLUMNS = ("arrival", "prompt", "output", "priority", "session", "delay", "tenant")


def plain_lines(requests: Iterable[Request], columns: Sequence[str] = COLUMNS) -> Iterator[str]:
    """Yield the lines, with their ends, of a trace in the plain format; times are rounded to 1 us.

    The first three of `COLUMNS` must be among *columns*.  Chunk names have no
    place in this format, so no prefix is shared any more.
    """
    yield ",".join(columns) + "\n"
    for request in requests:
        values = (getattr(request, name) for name in columns)
        yield ",".join(f"{value:.6f}" if isinstance(value, float) else str(value) for value in values) + "\n"


def mooncake_lines(requests: Iterable[Request]) -> Iterator[str]:
    """Yield the lines, with their ends, of a trace in Mooncake's format; times are rounded to 1 us.

    Blocks have the requests' chunk size, and every chunk that ends with the
    prompt or has no name gets an id of its own.
    """
    ids: dict[Hashable, int] = {}
    sessions: set[str] = set()
    for request in requests:
        row: dict[str, object] = {"timestamp": round(request.arrival * 1e3, 3)}
        if request.session in sessions:
            row = {"delay": round(request.delay * 1e3, 3)}
        if request.session:
            sessions.add(request.session)
            row = {"session_id": request.session} | row
        row |= {"input_length": request.prompt, "output_length": request.output, "hash_ids": _block_ids(request, ids)}
        yield json.dumps(row) + "\n"


def _block_ids(request: Request, ids: dict[Hashable, int]) -> list[int]:
    whole = list(request.chunks[: request.prompt // request.chunk_tokens])
    nameless = -(-request.prompt // request.chunk_tokens) - len(whole)
    own: list[Hashable] = [("own", request.id, place) for place in range(nameless)]
    return [ids.setdefault(name, len(ids)) for name in whole + own]

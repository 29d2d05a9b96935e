"""WEKA's recorded coding-agent sessions: a JSON object each, with ids of 64-token blocks; their starts need a rate.

https://github.com/callanjfox/kv-cache-tester
"""

from collections.abc import Hashable, Iterator, Mapping
from math import nan
from typing import Any, NamedTuple

from ksim.workload.jsonl import documents, keys, member
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, chunk_names, count, duration, label, moment, shown

__all__ = ["Weka"]

_DEEPEST = 8


class Weka:
    """Reads a session as turns, each `think_time` after the answer before it, as the publisher's replayer does.

    A file holds one session, or several: one per line, or one after the other.  A
    folder of such files is one trace.  The
    calls of a sub-agent are turns at their place in the list; if the agent changes,
    the next call waits for what is left of the recorded gap.  Ids of scope "local"
    are unique to the session.  Calls without output were aborted.  All calls go to
    the simulated model, whichever model they name.
    """

    example = (
        '{"id": "one", "block_size": 4, "hash_id_scope": "local", "requests": ['
        '{"t": 0.0, "type": "n", "in": 9, "out": 5, "hash_ids": [1, 2], "api_time": 2.0, "think_time": 0.0}, '
        '{"t": 3.0, "type": "subagent", "requests": [{"t": 0.0, "type": "n", "in": 4, "out": 2, "hash_ids": [3]}]}, '
        '{"t": 7.0, "type": "s", "in": 14, "out": 3, "hash_ids": [1, 2, 4], "think_time": 5.0}]}\n'
        '{"id": "two", "block_size": 4, "hash_id_scope": "local", "requests": ['
        '{"t": 0.0, "type": "n", "in": 8, "out": 5, "hash_ids": [1, 2]}]}\n'
    )
    time_unit = "s"
    empty = "skip"
    folders = True

    def recognises(self, first: str) -> bool:
        return {"requests", "block_size", "hash_id_scope"} <= keys(first)

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        seen: set[str] = set()
        sessions = ((part, session) for part in lines.parts() for session in documents(part))
        for number, (lines, session) in enumerate(sessions):  # noqa: PLR1704
            name = label(session.get("id"), "id", lines) or str(number)
            if name in seen:
                raise lines.error(f"session {shown(name)} is in the trace twice; leave out one of them")
            seen.add(name)
            size = chunk_tokens or _positive(member(session, ("block_size",), lines), "block_size", lines)
            ids = _Ids(number, _is_local(session, lines))
            yield from _turns(session, name, size, ids, lines)


class _Call(NamedTuple):
    """One call of the model: its agent (the place of its list), and its times in seconds from the session's start."""

    agent: str
    where: str
    fields: Mapping[str, Any]
    begin: float
    end: float


class _Ids(dict[Hashable, Hashable]):
    """The names of a session's chunks, each made once, since thousands of turns share them."""

    def __init__(self, session: int, local: bool):
        super().__init__()
        self.session, self.local = session, local

    def __missing__(self, name: Hashable) -> Hashable:
        self[name] = (self.session, name) if self.local else name
        return self[name]


def _turns(session: Mapping[str, Any], name: str, size: int, ids: _Ids, lines: Lines) -> Iterator[Row]:
    previous = None
    for call in _calls(session, "", 0.0, lines):
        prompt = count(member(call.fields, ("in",), lines, call.where), f"{call.where}.in", lines)
        chunks = chunk_names(call.fields.get("hash_ids"), prompt, size, lines, loose=True)
        yield Row(nan, prompt, count(member(call.fields, ("out",), lines, call.where), f"{call.where}.out", lines),
                  tuple(map(ids.__getitem__, chunks)), size, session=name, delay=_delay(call, previous, lines))
        previous = call


def _delay(call: _Call, previous: _Call | None, lines: Lines) -> float:
    if previous is None:
        return 0.0
    if call.agent == previous.agent and call.fields.get("think_time") is not None:
        return duration(call.fields["think_time"], f"{call.where}.think_time", lines)
    return max(0.0, call.begin - previous.end)


def _calls(holder: Mapping[str, Any], agent: str, start: float, lines: Lines) -> Iterator[_Call]:
    """Yield the calls in the list of *holder*, those of sub-agents at their places in it."""
    calls = member(holder, ("requests",), lines, agent[:-1])
    if not isinstance(calls, list) or agent.count(".") > _DEEPEST:
        raise lines.error(f"{agent}requests is {shown(calls)}; expected a list of calls")
    for index, call in enumerate(calls):
        where = f"{agent}requests[{index}]"
        if not isinstance(call, dict):
            raise lines.error(f"{where} is {shown(call)}; expected a call")
        begin = start + moment(member(call, ("t",), lines, where), f"{where}.t", lines)
        if call.get("type") == "subagent":
            yield from _calls(call, f"{where}.", begin, lines)
        else:
            yield _Call(agent, where, call, begin, begin + duration(call.get("api_time"), f"{where}.api_time", lines))


def _is_local(session: Mapping[str, Any], lines: Lines) -> bool:
    scope = member(session, ("hash_id_scope",), lines)
    if scope not in ("local", "global"):
        raise lines.error(f"hash_id_scope is {shown(scope)}; expected local or global")
    return bool(scope == "local")


def _positive(value: Any, name: str, lines: Lines) -> int:
    if (number := count(value, name, lines)) < 1:
        raise lines.error(f"{name} is {shown(value)}; expected at least 1")
    return number

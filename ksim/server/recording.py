"""The run directory of a live fleet, with its requests as a trace that replays them."""

import json
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from attrs import define, evolve, field

from ksim.flow.events import Failed, Finished, Rejected
from ksim.flow.request import Image, Request
from ksim.results.streaming import ParquetLog
from ksim.scenario.scenario import Scenario
from ksim.server.live import Handle, Live
from ksim.simulation.simulate import writing
from ksim.workload.replay import Replay, Workload

__all__ = ["LiveRecording", "recording", "row_of"]


#: The trace in the directory of a run.
REQUESTS = "requests.jsonl"
#: Beyond the numbers that name blocks of tokens (ksim.server.openai.prompts).
UNNAMED = 1 << 48


class _NothingPlayed(Exception):
    """There is no run to write."""


@define(eq=False)
class LiveRecording:
    """Writes the requests of a fleet to `file` in the order of their arrivals, once they and those before have ended.

    `sink` writes what happens to them.  Only requests in flight are held in memory.  For one whose client hung up
    before its end, by simulated time, the trace says when.
    """

    sink: ParquetLog
    file: IO[str]
    live: Live | None = field(default=None, init=False)
    _rows: deque[dict[str, Any]] = field(factory=deque, init=False)
    _open: dict[int, dict[str, Any]] = field(factory=dict, init=False)  # rows of requests that have not ended
    _gone: dict[int, float] = field(factory=dict, init=False)  # those among them whose clients have gone, and when

    def attach(self, live: Live) -> None:
        """Record what *live* does, whose log tells `sink`."""
        self.live, live.sent, live.aborted = live, self._sent, self._aborted
        for kind in (Finished, Rejected, Failed):
            live.log.subscribe(kind, self._ended)

    def _sent(self, handle: Handle) -> None:
        row = row_of(handle.request)
        if row.get("session") in self._sessions():  # a replay would make it wait
            row["session"] += f" {row['id']}"
        self._open[row["id"]] = row
        self._rows.append(row)

    def _sessions(self) -> set[str]:
        """The sessions that have a turn in flight."""
        return {row["session"] for row in self._open.values() if "session" in row}

    def _aborted(self, handle: Handle, moment: float) -> None:
        self._gone[handle.request.id] = moment

    def _ended(self, event: Finished | Rejected | Failed) -> None:
        row, gone = self._open.pop(event.request_id, None), self._gone.pop(event.request_id, None)
        if row is not None and gone is not None and not isinstance(event, Finished):
            row["aborted"] = gone - row["arrival"]
        while self._rows and self._rows[0]["id"] not in self._open:
            self._write(self._rows.popleft())

    def _write(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps({name: value for name, value in row.items() if name != "id"}) + "\n")

    def end(self) -> None:
        """Write the requests that have not ended."""
        for number, moment in self._gone.items():
            self._open[number]["aborted"] = moment - self._open[number]["arrival"]
        while self._rows:
            self._write(self._rows.popleft())
        self.file.flush()


@contextmanager
def recording(scenario: Scenario, directory: Path | str) -> Iterator[LiveRecording]:
    """Write the run directory of a live fleet of *scenario*, which the caller attaches and plays.

    The scenario.toml in it replays requests.jsonl.  Without a fleet that is attached, nothing is written.
    """
    with suppress(_NothingPlayed), writing(scenario, directory) as written:
        with (written.directory / REQUESTS).open("w", encoding="utf-8") as file:
            recorded = LiveRecording(written.sink, file)
            yield recorded
            recorded.end()
        if recorded.live is None:
            raise _NothingPlayed
        fleet, workload = recorded.live.fleet, Workload(replay=Replay(path=Path(REQUESTS)))
        written.end(evolve(fleet, scenario=evolve(fleet.scenario, workload=workload)))


def row_of(request: Request) -> dict[str, Any]:
    """*request* as a row of ksim's own trace format, without what it does not set."""
    row: dict[str, Any] = {
        "id": request.id, "arrival": request.arrival, "prompt": request.prompt, "output": request.output,
        **_names(request), "priority": request.priority or None, "session": request.session,
        "tenant": request.tenant, "adapter": request.adapter, "images": [_image(image) for image in request.images],
        "acceptance": request.acceptance, "max_tokens": request.max_tokens, "n": request.n if request.n > 1 else None,
        "outputs": [*request.outputs], "prompt_logprobs": request.prompt_logprobs,
        "beam_width": request.beam_width or None, "aborted": request.aborted,
        "ignore_eos": request.ignore_eos or None}
    needed = ("id", "arrival", "prompt", "output")
    return {name: value for name, value in row.items() if name in needed or value not in (None, "", [])}


def _names(request: Request) -> dict[str, list[Hashable]]:
    """The names of its blocks, in a trace's two lists: blocks of the prompt, and blocks with output in them.

    A trace has names for the whole prompt or none, so blocks without names get names of their own.
    """
    chunks, prompt, size = [*request.chunks], request.prompt, request.chunk_tokens
    missing = range(len(chunks), prompt // size) if chunks else ()
    chunks += [(request.id << 20 | index) + UNNAMED for index in missing]
    whole = len(chunks) if (len(chunks) - 1) * size < prompt else prompt // size
    return {"hash_ids": chunks[:whole], "output_hash_ids": chunks[whole:]}


def _image(image: Image) -> str:
    """*image* as a trace writes it."""
    return f"{image.width}x{image.height}@{image.at}" + (f"#{image.name}" if image.name else "")

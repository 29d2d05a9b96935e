"""The engine's loop without a clock: what is in flight, what is waited for, and when it sleeps."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from ksim.scheduling.engine_loop import EngineLoop, ScheduleForecast, Turn
from ksim.scheduling.job import Job, State
from ksim.testing.loop import Loop, loop
from tests.properties import examples


@define
class Recorded:
    """A scheduler that makes the given schedules, "" an empty one, with so many turns in flight."""

    schedules: Iterator[str]
    depth: int = 2
    repeats: int = 0
    calls: list[Any] = field(factory=list)

    @property
    def limits(self) -> SimpleNamespace:
        return SimpleNamespace(depth=self.depth)

    def schedule(self, now: float) -> str:
        return next(self.schedules)

    def update(self, schedule: str, index: int, *output: str) -> list[str]:
        self.calls.append((schedule, index, *output))
        return [f"job of {schedule}"]

    def repeat(self) -> bool:
        self.repeats -= 1
        return self.repeats >= 0

    def sync(self, index: int) -> str:
        self.calls.append(("sync", index))
        return "repeated"


@define
class Notes:
    """A port that notes what it is asked; each wait yields one event."""

    now: float = 0.0
    asked: list[str] = field(factory=list)

    def launch(self, turn: Turn) -> tuple[()]:
        self.asked.append(f"launch {turn.schedule}")
        return ()

    def wait(self, turn: Turn) -> list[str]:
        self.asked.append(f"wait {turn.schedule}")
        return [f"event of {turn.schedule}"]

    def deliver(self, turn: Turn, finished: list[Any]) -> None:
        self.asked.append(f"deliver {turn.schedule}")

    def sleep(self, turn: Turn) -> tuple[()]:
        self.asked.append("sleep")
        return ()


@define
class Reporting(Notes):
    """A port whose workers report something with every batch, also with an empty one."""

    def wait(self, turn: Turn) -> list[str]:
        turn.output = f"output of {turn.schedule}"
        return []

    def sleep(self, turn: Turn) -> tuple[()]:
        turn.output = "what ended meanwhile"
        return super().sleep(turn)


def play(schedules: Sequence[str], depth: int = 2) -> tuple[EngineLoop, Notes, list[str]]:
    """A turn for each of *schedules*; also what the loop waited for."""
    loop, notes = EngineLoop(Recorded(iter(schedules), depth)), Notes()
    return loop, notes, [event for _ in schedules for event in loop.run_turn(notes)]


def test_with_one_turn_in_flight_each_is_waited_for_at_once():
    _, notes, events = play(["a", "b"], depth=1)
    assert notes.asked == ["launch a", "wait a", "deliver a", "launch b", "wait b", "deliver b"]
    assert events == ["event of a", "event of b"]


def test_with_two_in_flight_the_oldest_is_taken_in_after_the_next_is_launched():
    loop, notes, _ = play(["a", "b", "c"])
    assert notes.asked == ["launch a", "launch b", "wait a", "deliver a", "launch c", "wait b", "deliver b"]
    assert [turn.schedule for turn in loop.in_flight] == ["c"]


def test_an_empty_turn_takes_its_place_in_the_queue():
    loop, notes, _ = play(["a", "", "b"])
    assert notes.asked[:4] == ["launch a", "launch ", "wait a", "deliver a"]
    assert notes.asked[4:] == ["launch b", "wait ", "deliver "]
    assert loop.scheduler.calls == [("a", 0), ("", 0)]


def test_it_sleeps_once_nothing_is_in_flight():
    loop, notes, _ = play(["a", "", "", ""])
    assert notes.asked[-5:] == ["deliver a", "launch ", "sleep", "launch ", "sleep"]
    assert not loop.in_flight


def test_steps_are_numbered_by_the_batches_that_are_launched():
    loop, _, _ = play(["a", "", "b", "c", "d"])
    assert loop.steps == 4
    assert loop.scheduler.calls == [("a", 0), ("", 0), ("b", 1), ("c", 2)]
    assert (loop.count_step(), loop.steps) == (4, 5)


def test_a_port_without_a_clock_must_not_wait():
    loop = EngineLoop(Recorded(iter("a"), depth=1))
    with pytest.raises(AssertionError, match="waits for event of a"):
        loop.run_turn_at_once(Notes())


@pytest.mark.parametrize(("depth", "in_flight", "returned"), [(1, [], 2), (2, [("repeated", 3)], 2)])
def test_repeated_turns_are_known_to_the_queue_after_sync(depth, in_flight, returned):
    """Of two turns in a queue of two, one is taken in; two repeats later the fourth is in flight."""
    loop, _, _ = play(["a", "b"] if depth == 2 else ["a"], depth)
    loop.scheduler.repeats = 2
    assert [loop.repeat_turn() for _ in range(3)] == [True, True, False]
    loop.sync()
    assert [(turn.schedule, turn.index) for turn in loop.in_flight] == in_flight
    assert loop.scheduler.calls[-1] == ("sync", returned)


def test_what_workers_report_is_taken_in_with_their_batch():
    loop, notes = EngineLoop(Recorded(iter(["a", "", "b"]))), Reporting()
    for _ in range(3):
        loop.run_turn_at_once(notes)
    assert loop.scheduler.calls == [("a", 0, "output of a"), ("", 0, "output of ")]


def test_what_workers_report_while_nothing_is_in_flight_is_taken_in_after_the_sleep():
    loop, notes = EngineLoop(Recorded(iter(["", ""]))), Reporting()
    for _ in range(2):
        loop.run_turn_at_once(notes)
    assert loop.scheduler.calls == [("", -1, "what ended meanwhile")] * 2
    assert notes.asked == ["launch ", "sleep", "deliver "] * 2


def foreseen(turns: Loop) -> int:
    return ScheduleForecast(turns.scheduler).repeats_left()


def test_repeats_are_foreseen_as_soon_as_a_batch_is_as_the_next_one():
    turns = loop(async_scheduling=True)
    first, second = turns.add(4, 6), turns.add(4, 3)
    assert [(len(turns.turn()), foreseen(turns)) for _ in range(3)] == [(2, 0), (2, 1), (2, 0)]
    assert (turns.turn(), foreseen(turns)) == ({first: 1}, 2)  # the last token of the second is taken in
    assert second in turns.finished
    turns.add(4, 3)
    assert foreseen(turns) == 0


def test_without_async_scheduling_a_batch_that_loses_a_job_is_not_repeated():
    turns = loop(async_scheduling=False)
    first, second = turns.add(4, 7), turns.add(4, 4)
    assert [(len(turns.turn()), foreseen(turns)) for _ in range(4)] == [(2, 0), (2, 1), (2, 0), (2, 0)]
    assert second in turns.finished
    assert (turns.turn(), foreseen(turns)) == ({first: 1}, 1)


def test_an_abort_ends_what_was_foreseen():
    turns = loop(async_scheduling=True)
    first, second = turns.add(4, 20), turns.add(4, 20)
    turns.turn(), turns.turn()
    assert foreseen(turns) > 1
    turns.scheduler.abort(second)
    assert foreseen(turns) == 0
    assert (turns.turn(), foreseen(turns)) == ({first: 1}, 17)


@given(lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 9)), min_size=1, max_size=12),
       ahead=st.booleans(), slots=st.integers(1, 4), blocks=st.integers(12, 40), gone=st.integers(0, 40))
@examples(60)
def test_what_is_foreseen_comes(lengths, ahead, slots, blocks, gone):
    """Unless a request comes or is aborted, or blocks are short."""
    turns = loop(async_scheduling=ahead, max_num_seqs=slots, blocks=blocks)
    left, before, sent = 0, list[Job](), 0
    while sent < len(lengths) or any(job.state is not State.DONE for job in turns.jobs):
        for prompt, output, wait in lengths[sent:sent + 1]:
            if turns.turns % 10 >= wait:
                turns.add(prompt, output)
                left, sent = 0, sent + 1
        if turns.turns == gone and (there := [job for job in turns.jobs if job.state is not State.DONE]):
            turns.scheduler.abort(there[0])
            left = 0
        now = [*turns.turn()]
        if left > 0 and not turns.last_schedule.preempted:
            assert now == before
        left, before = max(left - 1, foreseen(turns)), now
        assert turns.turns < 5000

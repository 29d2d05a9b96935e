"""Requests that come at once are read one after the other, a few in each turn of the event loop."""

import asyncio
from itertools import count

import pytest

from ksim.flow.request import Request
from ksim.server import live
from ksim.server.live import Turns
from tests.server.fake import Ear, FakeLive
from tests.server.talk import SCENARIO


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by 1.5 ms with each look at it."""
    looks = count()
    monkeypatch.setattr(live, "perf_counter", lambda: 1.5e-3 * next(looks))


def test_others_have_their_turn_before_all_is_done(clock):
    async def go():
        queue, done, seen = Turns(), list[int](), list[int]()
        jobs = [asyncio.create_task(queue.take(lambda number=number: done.append(number), 0.0)) for number in range(6)]
        while len(done) < 6:
            await asyncio.sleep(0)
            seen.append(len(done))
        await asyncio.gather(*jobs)
        return done, seen
    done, seen = asyncio.run(go())
    assert done == [0, 1, 2, 3, 4, 5]
    assert [number for number in seen if number] == [2, 4, 6], "two jobs fill a slice"


def test_a_job_that_fails_or_that_nobody_waits_for_does_not_stop_the_next():
    async def go():
        queue = Turns()
        jobs = [asyncio.create_task(queue.take(job, 0.0)) for job in (lambda: next(iter(())), lambda: 2, lambda: 3)]
        await asyncio.sleep(0)
        jobs[1].cancel()
        return await asyncio.gather(*jobs, return_exceptions=True), queue.oldest
    (failed, gone, last), oldest = asyncio.run(go())
    assert isinstance(failed, RuntimeError) and isinstance(gone, asyncio.CancelledError)
    assert (last, oldest) == (3, None)


def test_simulated_time_waits_for_a_request_that_has_come():
    async def go():
        fake, ear = FakeLive(SCENARIO), Ear()
        fake.submit(Request(0, 0.0, 20, 9), ear)
        late = fake.live.env.due + 1e-4
        waiting = asyncio.create_task(fake.live.turns.take(
            lambda: fake.live.submit(Request(0, 0.0, 20, 9), Ear(), late), late))
        await asyncio.sleep(0)
        fake.wall.time = 10.0
        while fake.live.advance() <= 0 and fake.live.env.due <= late:
            pass
        assert ear.end is None, "the second request might have delayed it"
        assert (await waiting).request.arrival < late + 2e-6
    asyncio.run(go())

"""What an observed engine tells of turns that it takes before it knows their times: noted with them, told with the
times.

A request that comes meanwhile changes nothing but how many wait, so that is counted when somebody looks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ksim.engine.observer import Observer, Reading, first_tokens
from ksim.flow.request import Request
from ksim.scheduling.engine_loop import Turn
from ksim.scheduling.job import Job
from ksim.scheduling.scheduler import Scheduler

__all__ = ["Dates", "Facts", "note", "settle", "tell"]

#: When a turn begins, when a batch that it takes in reaches its users, if it does, and when it has done so.
Dates = tuple[float, float | None, float]


class Facts(NamedTuple):
    """What holds when a turn has taken in an output: requests that have first tokens, counts, and what entered and left
    the cache."""

    firsts: Sequence[Request]
    waiting: int
    running: int
    blocks: int
    tells: Sequence[int]


def note(observer: Observer, scheduler: Scheduler, turn: Turn | None) -> Facts:
    """Note what holds now that *turn* is taken in, or one that repeats a schedule."""
    tells, told = observer.tells, list[int]()
    if tells:
        told = tells[:]
        tells.clear()
    firsts = first_tokens(turn) if turn is not None and observer.answers is not None else ()
    return Facts(firsts, len(scheduler.waiting), len(scheduler.running), scheduler.cache.pool.used, told)


def tell(observer: Observer, facts: Facts, finished: Sequence[Job], dates: Dates) -> None:
    """Tell *facts*, and that jobs have *finished*, of a turn with these *dates*."""
    begun, delivered, taken = dates
    if delivered is not None:
        for request in facts.firsts:
            observer.first_token(delivered, request)
        for job in finished:
            observer.ended(delivered, job.request, over=True)
    if observer.interval is not None:
        observer.read(Reading(taken, facts.waiting, facts.running, facts.blocks, since=begun))
    if facts.tells:
        observer.events.append((taken, facts.tells, ()))


def settle(observer: Observer | None, moments: Sequence[float]) -> None:
    """Count those that have come meanwhile, at *moments*, among those that wait; from now on, say nothing twice."""
    if observer is None:
        return
    observer.silent, come = True, sorted(moments)
    for place, reading in enumerate(observer.readings):
        if reading.since is not None:
            waiting = reading.waiting + bisect_right(come, reading.since)
            observer.readings[place] = reading._replace(waiting=waiting, since=None)

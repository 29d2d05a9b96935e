"""No request is lost, and none waits for ever."""

from collections import Counter
from collections.abc import Iterator

from ksim.scheduling.job import State
from ksim.testing.history import History


def nobody_lost(history: History) -> Iterator[tuple[int, str]]:
    """At all times a request is waiting, running or done, is in that list exactly once, and finishes once."""
    ended = Counter[int]()
    for moment in history.moments:
        ended.update(moment.finished)
        waiting, running = Counter(moment.waiting), Counter(moment.running)
        for number, state in moment.states.items():
            listed = waiting[number], running[number]
            if listed != {State.WAITING: (1, 0), State.RUNNING: (0, 1), State.DONE: (0, 0)}[state]:
                yield moment.step, (f"request {number} is {state.value}, and is {listed[0]} times in the queue and"
                                    f" {listed[1]} times among those that run")
            if ended[number] > 1 or (state is State.DONE and not ended[number] and number not in history.aborted):
                yield moment.step, f"request {number} is done, and was reported finished {ended[number]} times"


def no_idle_step(history: History) -> Iterator[tuple[int, str]]:
    """A step schedules tokens, unless a batch is in flight, a request is preempted, or no request waits or runs."""
    for moment in history.schedules:
        if not (moment.shares or moment.preempted or moment.in_flight) and (moment.waiting or moment.running):
            yield moment.step, (f"nothing is scheduled and nothing is in flight, while {len(moment.waiting)} requests"
                                f" wait and {len(moment.running)} run")


def everything_ends(history: History) -> Iterator[tuple[int, str]]:
    """All requests end within (requests + 1) x depth x interval x (all their tokens) steps of the last arrival.

    `depth` is the number of batches that may be in flight; `interval` is `prefill_schedule_interval`.
    """
    if history.schedules and not history.complete and history.error is None:
        last = history.schedules[-1]
        if last.step - max(history.arrived) > longest(history):
            yield last.step, f"requests {sorted(last.waiting + last.running)} never end"


def bounded_wait(history: History) -> Iterator[tuple[int, str]]:
    """A request ends within depth x interval x W steps of its arrival.

    W is the tokens of the requests that arrived no later, plus the tokens of twice as many of the largest
    requests as may run at once.  So later arrivals delay a request only for a bounded time.  Policies under
    which some requests wait as long as others arrive (by priority or by length) are exempt.
    """
    ended = {number: moment.step for moment in history.updates for number in moment.finished}
    for number, arrived in enumerate(history.arrived):
        if number in history.aborted or not history.schedules:
            continue
        end, most = ended.get(number, history.schedules[-1].step), _bound(history, number)
        if end - arrived > most:
            yield end, f"request {number} waits for {end - arrived} steps, and {most} are the bound"


def longest(history: History) -> int:
    """The bound of `everything_ends`."""
    sizes = [history.size(number) for number in range(len(history.jobs))]
    return (len(sizes) + 1) * _per_token(history) * (sum(sizes) + 1)


def _bound(history: History, number: int) -> int:
    sizes = [history.size(other) for other in range(len(history.jobs))]
    ahead = sum(size for other, size in enumerate(sizes) if history.arrived[other] <= history.arrived[number])
    return _per_token(history) * (ahead + 2 * min(history.limits.active, len(sizes)) * max(sizes))


def _per_token(history: History) -> int:
    return history.limits.depth * history.limits.prefill_schedule_interval

"""No request is lost, none waits for ever, and none overtakes another in the queue."""

from collections import Counter
from collections.abc import Iterator

from ksim.scheduling.job import State
from ksim.testing.history import EngineHistory, Moment

#: How often a request is in the queue, and among those that run.
_LISTED = {State.WAITING: (1, 0), State.LOADING: (1, 0), State.RUNNING: (0, 1), State.DONE: (0, 0)}


def nobody_lost(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """At all times a request is waiting, running or done, is in that list exactly once, and finishes once."""
    ended = Counter[int]()
    for moment in history.moments:
        ended.update(moment.finished)
        waiting, running = Counter(moment.waiting), Counter(moment.running)
        for number, state in moment.states.items():
            listed = waiting[number], running[number]
            if listed != _LISTED[state]:
                yield moment.step, (f"request {number} is {state.value}, and is {listed[0]} times in the queue and"
                                    f" {listed[1]} times among those that run")
            if ended[number] > 1 or (state is State.DONE and not ended[number] and number not in history.aborted):
                yield moment.step, f"request {number} is done, and was reported finished {ended[number]} times"


def no_idle_step(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A step schedules tokens, unless a batch is in flight, a request is preempted, no request waits or runs, or SGLang
    holds prompts back for turns of decodes (`prefill_decode_interval`)."""
    if getattr(history.limits, "prefill_decode_interval", None):
        return
    for moment in history.schedules:
        if not (moment.shares or moment.preempted or moment.in_flight) and (moment.waiting or moment.running):
            yield moment.step, (f"nothing is scheduled and nothing is in flight, while {len(moment.waiting)} requests"
                                f" wait and {len(moment.running)} run")


def everything_ends(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """All requests end within (requests + 1) x depth x interval x (all their tokens) steps of the last arrival.

    `depth` is the number of batches that may be in flight; `interval` is `prefill_schedule_interval`.
    """
    if history.schedules and not history.complete and history.error is None:
        last = history.schedules[-1]
        if last.step - max(history.arrived) > longest(history):
            yield last.step, f"requests {sorted(last.waiting + last.running)} never end"


def bounded_wait(history: EngineHistory) -> Iterator[tuple[int, str]]:
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


def longest(history: EngineHistory) -> int:
    """The bound of `everything_ends`."""
    sizes = [history.size(number) for number in range(len(history.jobs))]
    return (len(sizes) + 1) * _per_token(history) * (sum(sizes) + 1) * (1 + history.slowest)


def _bound(history: EngineHistory, number: int) -> int:
    sizes = [history.size(other) for other in range(len(history.jobs))]
    ahead = sum(size for other, size in enumerate(sizes) if history.arrived[other] <= history.arrived[number])
    at_once = min(int(history.limits.active), len(sizes))
    return _per_token(history) * (ahead + 2 * at_once * max(sizes))


def _per_token(history: EngineHistory) -> int:
    return int(history.limits.depth) * history.interval


def work_conserved(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """While tokens are left in the budget and no request was preempted, running requests compute all that they can.

    The first waiting request is admitted if there are a sequence slot and blocks for all its tokens.  Drafts take
    tokens and blocks too, so this is not asked where there are any.
    """
    if history.limits.prefill_schedule_interval > 1 or history.speculates:
        return
    computed: dict[int, int] = {}
    sampled, returned = Counter[int](), Counter[int]()
    for moment in history.moments:
        if moment.kind == "update":
            returned.update(share.request for share in moment.shares if share.samples)
            continue
        left = history.limits.max_num_batched_tokens - sum(share.tokens for share in moment.shares)
        if left > 0 and not moment.preempted:
            shared = {share.request for share in moment.shares}
            known = sampled if history.limits.async_scheduling else returned
            for number in set(moment.ran) - shared if history.limits.depth < 3 else ():
                tokens = history.jobs[number].request.prompt + known[number] - computed.get(number, 0)
                if tokens > 0 and sampled[number] < history.foreseen(number) and number in moment.running:
                    yield moment.step, f"request {number} runs, has {tokens} tokens to compute, and gets none"
            yield from _head(history, moment, left)
        for share in moment.shares:
            computed[share.request] = share.end
            sampled[share.request] += share.samples


def _head(history: EngineHistory, moment: Moment, left: int) -> Iterator[tuple[int, str]]:
    waiting = [(number, known) for _, number, known in moment.queue if number in moment.waiting]
    if not waiting or len(moment.running) >= history.limits.active:
        return
    number, known = waiting[0]
    tokens = min(known, history.limits.cap(moment.live) or known)
    if tokens > left and not history.limits.enable_chunked_prefill:
        return
    needed = history.blocks(known)  # the most, whatever it finds in the cache
    if needed + (history.spare if moment.running else 0) <= moment.free:
        yield moment.step, (f"request {number} is first in the queue and is not let in, with {left} tokens,"
                            f" {history.limits.active - len(moment.running)} sequence slots and {moment.free} blocks"
                            f" left")


def no_overtaking(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """No request is admitted while one ahead of it in the policy's order is left waiting.

    Without an `order`, preempted requests come first, then the others in order of arrival.
    """
    for moment in history.schedules:
        places = {number: place for place, number, _ in moment.queue}
        passed = [(place, number) for place, number, _ in moment.queue if number in moment.waiting]
        for share in moment.shares:
            if share.admitted and share.request in places and passed:
                place, number = min(passed)
                if place < places[share.request]:
                    yield moment.step, f"request {share.request} is admitted before request {number}"


def no_admission_after_preemption(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A step that preempts a request admits none."""
    for moment in history.schedules:
        for share in moment.shares:
            if share.admitted and moment.preempted:
                yield moment.step, f"request {share.request} is admitted, and {moment.preempted} were preempted"

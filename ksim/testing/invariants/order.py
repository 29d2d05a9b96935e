"""Invariants of policies without `propose`: vLLM's admission in the order of the queue."""

from collections import Counter
from collections.abc import Iterator

from ksim.testing.history import History, Moment


def work_conserved(history: History) -> Iterator[tuple[int, str]]:
    """While tokens are left in the budget and no request was preempted, running requests compute all that they can.

    The first waiting request is admitted if there are a sequence slot and blocks for all its tokens.
    """
    if history.limits.prefill_schedule_interval > 1:
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


def _head(history: History, moment: Moment, left: int) -> Iterator[tuple[int, str]]:
    waiting = [(number, known) for _, number, known in moment.queue if number in moment.waiting]
    if not waiting or len(moment.running) >= history.limits.active:
        return
    number, known = waiting[0]
    wanted = min(known, history.limits.cap(moment.live) or known)
    if wanted > left and not history.limits.enable_chunked_prefill:
        return
    needed = history.blocks(known)  # the most, whatever it finds in the cache
    if needed + (history.spare if moment.running else 0) <= moment.free:
        yield moment.step, (f"request {number} is first in the queue and is not let in, with {left} tokens,"
                            f" {history.limits.active - len(moment.running)} sequence slots and {moment.free} blocks"
                            f" left")


def no_overtaking(history: History) -> Iterator[tuple[int, str]]:
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


def no_admission_after_preemption(history: History) -> Iterator[tuple[int, str]]:
    """A step that preempts a request admits none."""
    for moment in history.schedules:
        for share in moment.shares:
            if share.admitted and moment.preempted:
                yield moment.step, f"request {share.request} is admitted, and {moment.preempted} were preempted"

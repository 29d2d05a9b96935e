"""What SGLang's scheduler keeps besides: budgets of prompts, memory for outputs, its flag, and its order."""

from collections.abc import Iterator, Sequence

from ksim.scheduling.sglang.prefill_pass import CLIP
from ksim.testing.history import EngineHistory, Moment, Share
from ksim.testing.moment import RunningMoment


def prompt_budget(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """The prompts of a batch have at most `chunked_prefill_size` tokens, all but the last in whole pages, less one for
    each request that decodes beside them; all but the last have fewer than `max_prefill_tokens`.  There are at most
    `prefill_max_requests`.  Where prompts are not cut, each is computed whole."""
    limits = history.limits
    for moment in history.schedules:
        prompts = _prompts(moment)
        beside = len(moment.shares) - len(prompts)
        before = sum(_paged(history, share.tokens) for share in prompts[:-1])
        tokens = before + (prompts[-1].tokens if prompts else 0)
        if prompts and 0 <= limits.chunked_prefill_size < tokens + beside:
            yield moment.step, (f"prompts have {tokens} tokens beside {beside} decodes, and chunks"
                                f" {limits.chunked_prefill_size}")
        if before >= limits.max_prefill_tokens:
            yield moment.step, f"a prompt is admitted after {before} of {limits.max_prefill_tokens} tokens"
        if len(prompts) > (limits.prefill_max_requests or len(prompts)):
            yield moment.step, f"the batch has {len(prompts)} prompts"
        for share in prompts:
            if limits.chunked_prefill_size < 0 and not share.samples:
                yield moment.step, f"the prompt of request {share.request} is cut"


def memory_reserved(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """The last request of an admission needs less than the memory that is left: for its tokens, its whole output and a
    page, besides what earlier ones took and what is reserved for the outputs of those that decode."""
    for moment, batch in _batches(history):
        prompts = _prompts(moment)
        fresh = [share for share in prompts if share.admitted]
        if not fresh or moment.preempted or _by_ends(history, fresh[-1]):
            continue
        last = fresh[-1]
        taken = sum(history.blocks(share.end) - history.blocks(share.start) for share in moment.shares)
        available = (moment.free + taken) * history.block_tokens
        earlier = sum(_paged(history, share.tokens) + history.block_tokens + _output(history, share)
                      for share in prompts if share is not last)
        job, known = history.jobs[last.request], moment.known[last.request]
        needed = known - last.start + min(job.limit - (known - job.request.prompt), CLIP) + history.block_tokens
        if needed >= available - earlier - batch.reserved:
            yield moment.step, (f"request {last.request} is admitted for {needed} tokens, and of {available} are"
                                f" {earlier + batch.reserved:g} taken or reserved")


def full_hides_queue(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """While the running batch is marked as full, no request is admitted before one has left.  Where more urgent ones
    may preempt those that run, the mark is not heeded, and an empty batch has none."""
    if history.limits.preempts:
        return
    left = False
    before: Moment | None = None
    for moment in history.moments:
        if moment.kind == "update":
            left |= bool(moment.finished)
            continue
        hidden = before is not None and _hidden(before) and not left
        if hidden and any(share.admitted for share in moment.shares):
            yield moment.step, "a request is admitted, and the running batch was full and is as it was"
        before, left = moment, False


def order_after_retraction(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """After a retraction, who runs is in order of the tokens that came out, most first, then of the prompt, shortest
    first; with `retraction_policy` "priority", the more urgent come before.  Unless a policy chooses, the last in that
    order were retracted."""
    limits = history.limits
    for moment, batch in _batches(history):
        if not moment.preempted or _prompts(moment) or limits.preempts:
            continue
        keys = [_staying(history, number, tokens) for number, tokens in zip(batch.members, batch.sampled, strict=True)]
        if keys != sorted(keys):
            yield moment.step, f"after a retraction, the running batch is {list(batch.members)}"
        gone = [_staying(history, number, moment.tokens[number] - history.jobs[number].request.prompt)
                for number in moment.preempted if number in moment.tokens]
        if keys and gone and not hasattr(history.policy, "victim") and min(gone) < keys[-1]:
            yield moment.step, f"requests {list(moment.preempted)} are retracted, and others were behind them"


def retracted_wait_last(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """Who gives way goes to the end of the queue."""
    for moment in history.schedules:
        waiting = [number for number in moment.preempted if number in moment.waiting]
        if waiting and set(moment.waiting[-len(waiting):]) != set(waiting):
            yield moment.step, f"requests {waiting} give way, and the queue is {list(moment.waiting)}"


def pages_fit_tokens(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """The pages in use are those of the computed tokens of the requests that hold memory; shared ones count once."""
    ends: dict[int, int] = {}
    for moment in history.schedules:
        ends |= {share.request: share.end for share in moment.shares}
        pages = [history.blocks(ends[number]) for number in moment.running if number in ends]
        used = history.capacity - moment.free
        least = max(pages, default=0) if history.prefix_caching else sum(pages)
        if not least <= used <= sum(pages):
            yield moment.step, f"{used} pages are in use, and requests hold {pages}"


def _batches(history: EngineHistory) -> Iterator[tuple[Moment, RunningMoment]]:
    for moment in history.schedules:
        if moment.batch is not None:
            yield moment, moment.batch


def _prompts(moment: Moment) -> Sequence[Share]:
    return [share for share in moment.shares if share.prompt]


def _paged(history: EngineHistory, tokens: int) -> int:
    return history.blocks(tokens) * history.block_tokens


def _output(history: EngineHistory, share: Share) -> int:
    """What is set aside for the output of a prompt that is not cut."""
    return min(history.jobs[share.request].limit, CLIP) if share.samples else 0


def _by_ends(history: EngineHistory, share: Share) -> bool:
    """Whether SGLang goes by the ends of requests: without a cache, for one that ignores the stop token."""
    return not history.prefix_caching and history.jobs[share.request].request.ignore_eos


def _hidden(moment: Moment) -> bool:
    """Whether the queue stays hidden after *moment* until a request leaves."""
    batch = moment.batch
    return batch is not None and batch.full and bool(batch.members) and batch.chunked is None and not (
        any(share.prompt and not share.samples for share in moment.shares))


def _staying(history: EngineHistory, number: int, tokens: int) -> tuple[int, ...]:
    """Requests with a smaller key stay rather."""
    request = history.jobs[number].request
    urgency = history.limits.sign * request.priority if history.limits.retraction_policy == "priority" else 0
    return urgency, -tokens, request.prompt

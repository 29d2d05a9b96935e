"""Every request gets its tokens: all of them, once, in order, and from what was really computed."""

from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import pairwise

from ksim.scheduling.job import State
from ksim.testing.history import EngineHistory, emitted


def tokens_in_order(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A request samples exactly when its next token is due, and never computes beyond that token or beyond its end.

    Drafted tokens come after it.  They are taken to be accepted until their step is back.
    """
    sampled, drafted = Counter[int](), Counter[int]()
    for moment in history.moments:
        if moment.kind == "update":
            drafted.subtract({share.request: share.rejected for share in moment.shares})
            sampled.subtract({share.request: share.samples and share.lost for share in moment.shares})
            continue
        for share in moment.shares:
            number = share.request
            due, end = history.jobs[number].request.prompt + sampled[number] + drafted[number], share.end - share.drafts
            if end > due or share.samples != (end == due):
                yield moment.step, (f"request {number} computes up to token {end} and "
                                    f"{'samples' if share.samples else 'does not sample'}; the next is due after {due}")
            sampled[number] += share.samples
            drafted[number] += share.drafts
            if sampled[number] > history.foreseen(number):
                yield moment.step, f"request {number} samples token {sampled[number]}, beyond its end"


def exact_tokens(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """Each request ends with exactly its output tokens, one from each step that sampled, and one for each draft that it
    accepted; an aborted request gets no more than these."""
    owed: dict[int, list[int]] = {number: [] for number in range(len(history.jobs))}
    step = history.moments[-1].step if history.moments else 0
    for index, number in _returns(history):
        if len(owed[number]) < history.output(number) and number not in history.aborted:
            owed[number].append(index)
    if not history.complete:
        return
    for number, job in enumerate(history.jobs):
        got = emitted(job)
        if any(later <= earlier for earlier, later in pairwise(got)) and not history.speculates:
            yield step, f"request {number} got two tokens from one step: {got}"
        if number in history.aborted:
            if len(got) > history.output(number):
                yield step, f"request {number} was aborted, and got {len(got)} tokens of {history.output(number)}"
        elif got != owed[number] or job.sampled != history.output(number) or job.state is not State.DONE:
            yield step, (f"request {number} is {job.state.value} with {job.sampled} tokens of"
                         f" {history.output(number)}, from steps {got} where {owed[number]} sampled it")


def preemption_keeps_tokens(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A request that is admitted again still has its prompt and all tokens that it was given."""
    given = Counter[int]()
    for moment in history.moments:
        for share in moment.shares:
            number = share.request
            if moment.kind == "update":
                given[number] += share.yields
            elif share.admitted:
                expected = history.jobs[number].request.prompt + min(given[number], history.output(number))
                if moment.known[number] != expected:
                    yield moment.step, (f"request {number} is admitted with {moment.known[number]} tokens,"
                                        f" not {expected}")


def nothing_in_flight_when_admitted(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A request is admitted again only after every batch that contains it has completed, partial prompt chunks too."""
    in_flight = Counter[int]()
    for moment in history.moments:
        numbers = [share.request for share in moment.shares]
        if moment.kind == "update":
            in_flight.subtract(numbers)
            continue
        for share in moment.shares:
            if share.admitted and in_flight[share.request]:
                yield moment.step, (f"request {share.request} is admitted again while {in_flight[share.request]} of its"
                                    f" chunks are in flight")
        in_flight.update(numbers)


def hit_leaves_last_token(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A prefix hit never covers the last known token, and is empty for requests that do not read the cache."""
    for moment in history.schedules:
        for share in moment.shares:
            if share.admitted and share.start >= moment.known[share.request]:
                yield moment.step, (f"request {share.request} finds {share.start} of its {moment.known[share.request]}"
                                    " tokens: none is left to sample from")
            if share.admitted and share.start and not history.jobs[share.request].reads_cache:
                yield moment.step, f"request {share.request} does not read the cache, and finds {share.start} tokens"


def hits_were_computed(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A prefix hit covers only blocks that a request with the same first tokens was scheduled to compute."""
    seen = set[Hashable]()
    for moment in history.schedules:
        for share in moment.shares:
            if share.admitted:
                missing = [name for name in _prefixes(history, share.request, share.start) if name not in seen]
                if missing or (share.start and not history.prefix_caching):
                    yield moment.step, (f"request {share.request} finds {share.start} tokens, but {len(missing)} blocks"
                                        f" of them were never computed")
            seen.update(_prefixes(history, share.request, share.end))
        for number in moment.preempted:  # what it was given before it was preempted stays findable, as in vLLM
            seen.update(_prefixes(history, number, history.size(number)))


def counters_grow(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """Step numbers count up, time never goes back, and a request continues where it stopped unless it was preempted."""
    computed: dict[int, int] = {}
    for earlier, later in pairwise(history.schedules):
        if later.step != earlier.step + 1 or later.now < earlier.now:
            yield later.step, f"step {later.step} at {later.now:g} follows step {earlier.step} at {earlier.now:g}"
    for moment in history.moments:
        if moment.kind == "update":
            computed |= {share.request: computed[share.request] - share.rejected for share in moment.shares
                         if share.rejected and share.request in computed}
            continue
        for number in moment.preempted:
            computed.pop(number, None)
        for share in moment.shares:
            if share.admitted == (share.request in computed):
                what = "admitted twice" if share.admitted else "not admitted"
                yield moment.step, f"request {share.request} is {what}"
            elif not share.admitted and share.start != computed[share.request]:
                yield moment.step, (f"request {share.request} goes on from token {share.start}, and had computed"
                                    f" {computed[share.request]}")
            computed[share.request] = share.end


def _returns(history: EngineHistory) -> Iterator[tuple[int, int]]:
    """The engine's step and the request of each token that came back."""
    for moment in history.updates:
        for share in moment.shares:
            for _ in range(share.yields):
                yield moment.index, share.request


def _prefixes(history: EngineHistory, number: int, tokens: int) -> Iterator[Hashable]:
    """Names of the full prefixes in the first *tokens* tokens; beyond its content, they are the request's own."""
    content = tuple(history.jobs[number].block_table.content)
    for blocks in range(1, tokens // history.block_tokens + 1):
        yield content[:blocks] if blocks <= len(content) else (number, blocks)

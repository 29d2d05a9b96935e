"""With a KV connector, blocks that are loaded, read or computed on stay where they are, and loads leave room."""

from collections import Counter
from collections.abc import Iterator

from ksim.scheduling.job import State
from ksim.testing.history import EngineHistory, Moment


def loads_keep_blocks(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """Until its load is reported to have ended, a request holds the same blocks, and those being filled are held by
    nobody else."""
    filling: dict[int, tuple[int, ...]] = {}  # blocks by request
    first: dict[int, int] = {}
    for moment in history.moments:
        for number in moment.received:
            filling.pop(number, None)
        for number, start, end, asynchronous in moment.loads:
            if asynchronous:
                first[number] = start // history.block_tokens
                filling[number] = moment.block_tables.get(number, ())
                if len(filling[number]) != history.blocks(end):
                    yield moment.step, f"request {number} loads {end} tokens, into {len(filling[number])} blocks"
        for number, blocks in filling.items():
            if moment.block_tables.get(number, ()) != blocks:
                yield moment.step, f"request {number} loads into {blocks}, and holds {moment.block_tables.get(number)}"
            shared = {block for other, held in moment.block_tables.items() if other != number for block in held}
            if shared & set(blocks[first[number]:]):
                yield moment.step, f"blocks that a load of request {number} fills are in use by others"


def sends_keep_blocks(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A complete request whose blocks are to be sent holds all of them until they are sent."""
    kept: dict[int, tuple[int, ...]] = {}
    latest: dict[int, tuple[int, ...]] = {}
    for moment in history.moments:
        for number in moment.sent:
            kept.pop(number, None)
        for number in moment.finished:
            if number in history.sends and not history.jobs[number].failed and number not in history.aborted:
                kept[number] = latest.get(number, ())
        for number, blocks in kept.items():
            if moment.block_tables.get(number, ()) != blocks:
                yield moment.step, (f"request {number} has {blocks} to be sent, and holds"
                                    f" {moment.block_tables.get(number, ())}")
        latest = moment.block_tables


def loads_are_awaited(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A request is admitted after its load has ended, with all that was loaded; if that is all it has, its last token
    is computed again."""
    loading: dict[int, int] = {}  # tokens after the load, by request
    ended: dict[int, int] = {}
    for moment in history.moments:
        for number in moment.failed:
            loading.pop(number, None)
        ended |= {number: loading.pop(number) for number in moment.received if number in loading}
        for share in moment.shares if moment.kind == "schedule" else ():
            if share.request in loading:
                yield moment.step, f"request {share.request} is admitted before its load has ended"
            start = min(ended.pop(share.request, share.start), moment.known.get(share.request, share.end) - 1)
            late = share.admitted and share.start < start
            if late or share.start >= moment.known.get(share.request, share.end):
                yield moment.step, (f"request {share.request} goes on from token {share.start}, and its load ended"
                                    f" with {start}")
        loading |= {number: end for number, _, end, asynchronous in moment.loads if asynchronous}


def loads_leave_room(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """When a load begins, the prompts that are being computed or loaded can still get all their blocks."""
    partial = set[int]()
    loading = set[int]()
    for moment in history.moments:
        loading = {number for number in loading if moment.states[number] is State.LOADING}
        if moment.kind == "update":
            continue
        partial -= {share.request for share in moment.shares if share.samples}
        partial |= {share.request for share in moment.shares if not share.samples}
        partial = {number for number in partial if moment.states[number] is State.RUNNING}
        begun = [number for number, _, _, asynchronous in moment.loads if asynchronous]
        others = (partial | loading | set(begun[:-1])) - set(begun[-1:])
        if begun and not any(share.admitted for share in moment.shares):
            missing = sum(_missing(history, moment, number) for number in others)
            if missing > moment.free:
                yield moment.step, (f"request {begun[-1]} begins to load, and of the {missing} blocks that others are"
                                    f" yet to need {moment.free} are free")
        loading |= set(begun)


def _missing(history: EngineHistory, moment: Moment, number: int) -> int:
    needed = history.blocks(history.jobs[number].request.prompt)
    return max(0, needed - len(moment.block_tables.get(number, ())))


def computed_on_blocks_stay(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """On an engine that loads, no block of a request is free while a batch in flight computes on it."""
    in_use: dict[int, list[int]] = {}  # blocks by step
    for moment in history.moments:
        if moment.kind == "schedule":
            if moment.shares:
                in_use[moment.step] = [block for share in moment.shares
                                       for block in moment.block_tables.get(share.request, ())]
        elif moment.shares:
            in_use.pop(min(in_use))
        if history.consumes and history.limits.depth > 1:
            for step, blocks in in_use.items():
                if free := sorted(block for block in blocks if not moment.ref_counts[block]):
                    yield moment.step, f"blocks {free} are free while the batch of step {step} computes on them"


def preempted_gain_nothing(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """On an engine that only sends, a preempted request gets no token from batches made before: it computes them
    again."""
    if history.consumes:
        return
    tokens: dict[int, int] = {}
    for moment in history.moments:
        for number, known in moment.tokens.items():
            if known != tokens.get(number, known):
                yield moment.step, f"request {number} waits, and its tokens grow from {tokens[number]} to {known}"
        tokens = moment.tokens


def all_ends_once(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """In the end all blocks are free, and each request has ended once: it was aborted, failed, or has its tokens."""
    if not history.moments or history.error is not None:
        return
    last = history.moments[-1]
    ended = Counter(number for moment in history.moments for number in moment.finished)
    for number, job in enumerate(history.jobs):
        if job.state is not State.DONE or ended[number] != (number not in history.aborted):
            yield last.step, f"request {number} is {job.state.value}, and has ended {ended[number]} times"
        if not job.failed and number not in history.aborted and job.sampled != history.output(number):
            yield last.step, f"request {number} got {job.sampled} tokens of {history.output(number)}"
    if last.free != history.capacity:
        yield last.step, f"all requests have ended, and {last.free} of {history.capacity} blocks are free"

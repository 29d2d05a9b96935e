"""Every step keeps the settings that bound a batch, and no block is lost or held twice."""

from collections import Counter
from collections.abc import Iterator

from ksim.testing.history import EngineHistory, Moment, Share


def token_budget(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A batch has at most `max_num_batched_tokens` tokens."""
    most = history.limits.max_num_batched_tokens
    for moment in history.schedules:
        if (tokens := sum(share.tokens for share in moment.shares)) > most:
            yield moment.step, f"the batch has {tokens} tokens, and the budget is {most}"


def sequence_limit(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """After every schedule, at most `max_num_seqs` requests run."""
    for moment in history.schedules:
        if len(moment.running) > history.limits.active:
            yield moment.step, f"{len(moment.running)} requests run, and the limit is {history.limits.active}"


def one_share_each(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A batch contains a request at most once, with one token or more, and no request preempted in that step."""
    for moment in history.schedules:
        counted = Counter(share.request for share in moment.shares)
        for share in moment.shares:
            if counted[share.request] > 1:
                yield moment.step, f"request {share.request} is in the batch {counted[share.request]} times"
            if share.tokens < 1:
                yield moment.step, f"request {share.request} is in the batch with {share.tokens} tokens"
            if share.request in moment.preempted:
                yield moment.step, f"request {share.request} was preempted, and is in the batch"


def chunk_cap(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """No request gets more tokens in a step than `long_prefill_token_threshold` allows, but for the drafts with which
    one is admitted, which nobody made."""
    for moment in history.schedules:
        cap = history.limits.cap(moment.live)
        for share in moment.shares:
            if cap and share.tokens - share.drafts * share.admitted > cap:
                yield moment.step, f"request {share.request} gets {share.tokens} tokens, and the cap is {cap}"


def whole_prompts(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """Without chunked prefill, a request is admitted with all its known tokens, or with as many as the chunk cap
    allows."""
    if history.limits.enable_chunked_prefill:
        return
    for moment in history.schedules:
        cap = history.limits.cap(moment.live)
        for share in moment.shares:
            needed = moment.known[share.request] - share.start if share.admitted else share.tokens
            if share.tokens < (min(needed, cap) if cap else needed):
                yield moment.step, f"request {share.request} is admitted with {share.tokens} of {needed} tokens"


def watermark_kept(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """After an admission beside other requests, `watermark` of the blocks are still free."""
    for moment in history.schedules:
        for share, free, alone in _admissions(history, moment):
            if not alone and free < history.spare:
                yield moment.step, (f"request {share.request} is admitted and {free} blocks are left, fewer than the"
                                    f" {history.spare} of the watermark")


def whole_prompt_reserved(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """With `scheduler_reserve_full_isl`, a request is admitted only if all its known tokens would fit."""
    if not history.limits.scheduler_reserve_full_isl:
        return
    for moment in history.schedules:
        for share, free, alone in _admissions(history, moment):
            more = history.blocks(moment.known[share.request]) - history.blocks(share.end)
            if more > free - (0 if alone else history.spare):
                yield moment.step, (f"request {share.request} is admitted, and of the {more} blocks that it is yet to"
                                    f" need {free} are free")


def _admissions(history: EngineHistory, moment: Moment) -> Iterator[tuple[Share, int, bool]]:
    """Each admission of a step without preemption: its share, the free blocks after it, and whether nothing else ran.

    The free blocks of all admissions but the last may be too many: later ones may have taken free blocks as hits.
    Where tokens are drafted, blocks do not follow from tokens, and none is told.
    """
    if moment.preempted or history.speculates:
        return
    free, others = moment.free, set(moment.ran)
    for share in reversed(moment.shares):
        if share.admitted:
            earlier = any(other.admitted for other in moment.shares[: moment.shares.index(share)])
            yield share, free, not others and not earlier
        free += history.blocks(share.end) - (0 if share.admitted else history.blocks(share.start))


def blocks_conserved(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """Each block counts exactly the requests that hold it, no request holds a block twice, and all other blocks
    are free."""
    for moment in history.moments:
        if not moment.ref_counts:
            return
        users = Counter(block for blocks in moment.block_tables.values() for block in blocks)
        for number, blocks in moment.block_tables.items():
            if len(set(blocks)) < len(blocks):
                yield moment.step, f"request {number} holds a block twice: {blocks}"
        for block, counted in enumerate(moment.ref_counts):
            if counted != users[block]:
                yield moment.step, f"block {block} has {users[block]} holders, and {counted} are counted"
        if len(users) + moment.free != history.capacity:
            yield moment.step, f"{len(users)} blocks are held and {moment.free} free, of {history.capacity}"


def blocks_fit_tokens(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A scheduled request holds exactly the blocks that its tokens so far need; those of drafts may be more."""
    speculates = history.speculates
    for moment in history.schedules:
        for share in moment.shares:
            if not moment.ref_counts:
                return
            held, needed = len(moment.block_tables.get(share.request, ())), history.blocks(share.end)
            if held < needed if speculates else held != needed:
                yield moment.step, f"request {share.request} holds {held} blocks for {share.end} tokens, not {needed}"


def waiting_hold_nothing(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """A request that does not run holds no block."""
    for moment in history.moments:
        for number in moment.block_tables:
            if number not in moment.running:
                yield moment.step, f"request {number} holds blocks but does not run"


def all_blocks_return(history: EngineHistory) -> Iterator[tuple[int, str]]:
    """When no request waits or runs, every block is free."""
    for moment in history.moments:
        if not moment.running and not moment.waiting and moment.free != history.capacity:
            yield moment.step, f"no request runs, and {moment.free} of {history.capacity} blocks are free"

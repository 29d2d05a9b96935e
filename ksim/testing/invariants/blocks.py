"""No block is lost or held twice, and requests hold the blocks that they need."""

from collections import Counter
from collections.abc import Iterator

from ksim.testing.history import History


def blocks_conserved(history: History) -> Iterator[tuple[int, str]]:
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


def blocks_fit_tokens(history: History) -> Iterator[tuple[int, str]]:
    """A scheduled request holds exactly the blocks that its tokens so far need."""
    for moment in history.schedules:
        for share in moment.shares:
            if not moment.ref_counts:
                return
            held, needed = len(moment.block_tables.get(share.request, ())), history.blocks(share.end)
            if held != needed:
                yield moment.step, f"request {share.request} holds {held} blocks for {share.end} tokens, not {needed}"


def waiting_hold_nothing(history: History) -> Iterator[tuple[int, str]]:
    """A request that does not run holds no block."""
    for moment in history.moments:
        for number in moment.block_tables:
            if number not in moment.running:
                yield moment.step, f"request {number} holds blocks but does not run"


def all_blocks_return(history: History) -> Iterator[tuple[int, str]]:
    """When no request waits or runs, every block is free."""
    for moment in history.moments:
        if not moment.running and not moment.waiting and moment.free != history.capacity:
            yield moment.step, f"no request runs, and {moment.free} of {history.capacity} blocks are free"

"""KV caches with one rule that is wrong."""

from functools import partial
from typing import Any

from ksim.kv_cache.block_cache import BlockCache
from ksim.kv_cache.cache import PrefixHit
from ksim.scheduling.scheduler import Scheduler
from ksim.testing import check_cache, check_scheduler
from tests.testing.mutants import Mutant, patched


def made(kind: Any) -> Any:
    """A class, or ksim's with a line of it changed: the method, what it reads, and what it reads then."""
    return patched(BlockCache, *kind) if isinstance(kind, tuple) else kind


def mutant(name: str, what: str, broken: str, kind: Any) -> Mutant:
    # Which examples are tried depends on which modules are loaded: enough of them find it, whatever ran before.
    return Mutant(name, what, broken,
                  lambda only: check_cache(made(kind), invariants=only, shrink=False, max_examples=400))


def in_use(name: str, what: str, broken: str, kind: Any) -> Mutant:
    """A cache that the scheduler's invariants find out."""
    return Mutant(name, what, broken, lambda only: check_scheduler(Scheduler, cache=made(kind), invariants=only,
                                                                   shrink=False))


class MergesEqualBlocks(BlockCache):
    """A block whose prefix another one holds already is not published."""

    def publish(self, table, tokens):
        super().publish(table, tokens)
        for node in self.tree:
            del node.blocks[1:]


class FreesTwice(BlockCache):
    def free(self, table, tokens=0):
        blocks = list(table.blocks)
        super().free(table, tokens)
        for block in blocks[:1]:
            self.pool.release(block)


class LosesTheLast(BlockCache):
    """The last block of each request is never given back."""

    def free(self, table, tokens=0):
        del table.blocks[-1:]
        super().free(table, tokens)


class SharesUncounted(BlockCache):
    """A second user of a block is not counted."""

    def attach_prefix(self, table, hit):
        super().attach_prefix(table, hit)
        for block in table.blocks:
            self.pool.ref_counts[block] = 1


class FindsNothingAgain(BlockCache):
    def find_prefix(self, table, num_tokens):
        return PrefixHit(0)


class FindsEverything(BlockCache):
    """Claims to have blocks that nobody has computed."""

    def find_prefix(self, table, num_tokens):
        hit = super().find_prefix(table, num_tokens)
        return PrefixHit(max(hit.tokens, (num_tokens - 1) // self.block_tokens * self.block_tokens), hit.nodes)


MUTANTS = [
    mutant("block_too_many", "a full last block makes for another one", "fits_when_it_fits",
           ("can_allocate", "self.blocks(tokens)", "tokens // self.block_tokens + 1")),
    mutant("block_too_few", "a last block that is not full is forgotten", "fits_when_it_fits",
           ("blocks", "-(-tokens // self.block_tokens)", "max(tokens // self.block_tokens, 1)")),
    mutant("hit_on_last_token", "a prompt of whole blocks is found whole", "hit_leaves_last_token",
           ("find_prefix", "(num_tokens - 1)", "num_tokens")),
    in_use("hit_on_last_token_in_use", "a prompt of whole blocks is found whole", "hit_leaves_last_token",
           ("find_prefix", "(num_tokens - 1)", "num_tokens")),
    mutant("hash_kept_after_reuse", "a block is found by what it held before", "same_prefixes_are_found",
           ("allocate", "self.tree.evict(block)", "pass")),
    mutant("equal_blocks_merged", "equal blocks are kept once", "same_prefixes_are_found", MergesEqualBlocks),
    mutant("head_evicted_first", "blocks are given back first to last", "evicts_in_the_same_order",
           ("free", "reversed(table.blocks)", "table.blocks")),
    mutant("unhashed_evicted_last", "what cannot be found again is lost last", "evicts_in_the_same_order",
           partial(BlockCache, unhashed_first=False)),
    mutant("freed_twice", "the first block is given back twice", "no_error", FreesTwice),
    mutant("last_block_leaks", "the last block is never given back", "each_user_is_counted", LosesTheLast),
    in_use("last_block_leaks_in_use", "the last block is never given back", "all_blocks_return", LosesTheLast),
    mutant("sharer_uncounted", "a second user is not counted", "each_user_is_counted", SharesUncounted),
    mutant("revived_uncounted", "hits that are free count as if they were held", "fits_when_it_fits",
           ("can_allocate", "+ evictable ", "")),
    mutant("spare_ignored", "what is to stay free is given away", "fits_when_it_fits",
           ("can_allocate", "+ spare ", "")),
    mutant("finds_nothing", "no prefix is found", "finds_the_longest_prefix", FindsNothingAgain),
    in_use("finds_what_is_not_there", "blocks are found that nobody computed", "hits_were_computed", FindsEverything),
]

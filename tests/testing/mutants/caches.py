"""KV caches that each break one rule."""

from functools import partial
from typing import Any

from ksim.kv.cache import PrefixHit
from ksim.kv.cache.block_cache import BlockCache
from ksim.scheduling.scheduler import Scheduler
from ksim.testing import check_cache, check_scheduler
from tests.testing.mutants import Mutant, patched


def made(kind: Any) -> Any:
    """*kind* if it is a class, else ksim's cache with one line changed: (method, old text, new text)."""
    return patched(BlockCache, *kind) if isinstance(kind, tuple) else kind


def mutant(name: str, what: str, broken: str, kind: Any) -> Mutant:
    # Which examples Hypothesis tries depends on the modules that are loaded.  400 of them find every fault.
    return Mutant(name, what, broken,
                  lambda only: check_cache(made(kind), invariants=only, shrink=False, max_examples=400))


def in_use(name: str, what: str, broken: str, kind: Any) -> Mutant:
    """A cache whose fault the scheduler's invariants must find."""
    return Mutant(name, what, broken, lambda only: check_scheduler(Scheduler, cache=made(kind), invariants=only,
                                                                   shrink=False))


class MergesEqualBlocks(BlockCache):
    """A block is not published if another block already holds its prefix."""

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
    """The last block of each request is never freed."""

    def free(self, table, tokens=0):
        del table.blocks[-1:]
        super().free(table, tokens)


class SharesUncounted(BlockCache):
    """A second user of a block is not counted."""

    def attach_prefix(self, table, hit):
        super().attach_prefix(table, hit)
        for block in table.blocks:
            self.pool.users[block] = 1


class FindsNothingAgain(BlockCache):
    def find_prefix(self, table, num_tokens):
        return PrefixHit(0)


class FindsEverything(BlockCache):
    """Prefix lookups find blocks that were never computed."""

    def find_prefix(self, table, num_tokens):
        hit = super().find_prefix(table, num_tokens)
        return PrefixHit(max(hit.tokens, (num_tokens - 1) // self.block_tokens * self.block_tokens), hit.nodes)


MUTANTS = [
    mutant("block_too_many", "a full last block counts as two", "fits_when_it_fits",
           ("can_allocate", "self.blocks(tokens)", "tokens // self.block_tokens + 1")),
    mutant("block_too_few", "a partial last block is not counted", "fits_when_it_fits",
           ("blocks", "-(-tokens // self.block_tokens)", "max(tokens // self.block_tokens, 1)")),
    mutant("hit_on_last_token", "a prefix hit covers all of a prompt of whole blocks", "hit_leaves_last_token",
           ("find_prefix", "(num_tokens - 1)", "num_tokens")),
    in_use("hit_on_last_token_in_use", "a prefix hit covers all of a prompt of whole blocks", "hit_leaves_last_token",
           ("find_prefix", "(num_tokens - 1)", "num_tokens")),
    mutant("hash_kept_after_reuse", "a reused block is still found by its old tokens", "same_prefixes_are_found",
           ("allocate", "self.tree.evict(block)", "pass")),
    mutant("equal_blocks_merged", "equal blocks are merged", "same_prefixes_are_found", MergesEqualBlocks),
    mutant("head_evicted_first", "blocks are freed from first to last", "evicts_in_the_same_order",
           ("free", "reversed(table.blocks)", "table.blocks")),
    mutant("unhashed_evicted_last", "blocks without a hash are evicted last", "evicts_in_the_same_order",
           partial(BlockCache, unhashed_first=False)),
    mutant("freed_twice", "the first block is freed twice", "no_error", FreesTwice),
    mutant("last_block_leaks", "the last block is never freed", "each_user_is_counted", LosesTheLast),
    in_use("last_block_leaks_in_use", "the last block is never freed", "all_blocks_return", LosesTheLast),
    mutant("sharer_uncounted", "a second user of a block is not counted", "each_user_is_counted", SharesUncounted),
    mutant("revived_uncounted", "hits on free blocks count as blocks in use", "fits_when_it_fits",
           ("can_allocate", "+ evictable ", "")),
    mutant("spare_ignored", "blocks that must stay free are allocated", "fits_when_it_fits",
           ("can_allocate", "+ spare ", "")),
    mutant("finds_nothing", "prefix lookups find nothing", "finds_the_longest_prefix", FindsNothingAgain),
    in_use("finds_what_is_not_there", "prefix lookups find blocks that were never computed", "hits_were_computed",
           FindsEverything),
]

"""Compare a KV cache with a naive model under random sequences of calls."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from ksim.kv.cache import BlockTable
from ksim.kv.cache.block_cache import BlockCache, BlockNode
from ksim.testing.naive import NaiveCache, NaiveRequest, Prefix

Pair = tuple[BlockTable, NaiveRequest]
MakeCache = Callable[[int, int, bool], Any]

_contents = st.lists(st.sampled_from("ab"), max_size=5)


class CacheFault(AssertionError):
    """A cache breaks `invariant`; the notes list the calls that led there."""

    def __init__(self, invariant: str, problem: str):
        super().__init__(invariant, problem)
        self.invariant, self.problem = invariant, problem

    def __str__(self) -> str:
        return f"{self.invariant}: {self.problem}"


def check_cache(make_cache: MakeCache = BlockCache, *, max_examples: int = 100, steps: int = 40,
                invariants: Sequence[str] = (), shrink: bool = True) -> None:
    """Compare a cache with a naive model of lists and a dictionary.

    *make_cache* gets the number of blocks, the tokens of a block, and whether to cache prefixes.  The cache must have
    the methods of `ksim.kv.cache.block_cache.BlockCache` and vLLM's order of eviction.  *invariants* names what is
    compared, by default everything.  Raises CacheFault with the shortest sequence of calls that leads to the fault.
    """
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    options = settings(max_examples=max_examples, stateful_step_count=steps, deadline=None, database=None,
                       derandomize=True, phases=phases, suppress_health_check=list(HealthCheck),
                       report_multiple_bugs=False)
    machine: Any = partial(CacheMachine, make_cache, invariants)
    try:
        run_state_machine_as_test(machine, settings=options)
    except CacheFault as fault:
        raise fault.with_traceback(None) from None
    except Exception as error:
        raised = CacheFault("no_error", f"{type(error).__name__}: {error}")
        raised.__notes__ = getattr(error, "__notes__", [])
        raise raised from error


class CacheMachine(RuleBasedStateMachine):
    """A cache and its naive model, and the requests that hold blocks in both."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    def __init__(self, make_cache: MakeCache = BlockCache, invariants: Sequence[str] = ()):
        super().__init__()
        self.compared = frozenset(invariants)
        self.make_cache = make_cache
        self.real: Any = None
        self.live: list[Pair] = []
        self.numbers: dict[BlockTable, int] = {}

    @initialize(capacity=st.integers(1, 20), block_tokens=st.integers(1, 4),
                prefix_caching=st.sampled_from([True, True, True, False]))
    def build(self, capacity: int, block_tokens: int, prefix_caching: bool) -> None:
        self.real = self.make_cache(capacity, block_tokens, prefix_caching)
        self.naive = NaiveCache(capacity, block_tokens, prefix_caching)

    @rule(target=waiting, content=_contents)
    def arrive(self, content: list[str]) -> Pair:
        return self._new(content)

    @rule(target=running, pair=consumes(waiting), known=st.integers(1, 16), whole=st.booleans(),
          chunk=st.sampled_from([30, 1, 2, 5]), spare=st.integers(0, 2), publishes=st.sampled_from([True, False]))
    def admit(self, pair: Pair, known: int, whole: bool, chunk: int, spare: int, publishes: bool) -> Any:
        """Start a waiting request if it fits; prompts of *whole* blocks tempt the cache to hit the last token."""
        known = self.naive.blocks(known) * self.naive.block_tokens if whole else known
        table, request = pair
        hit, hits = self._find_prefix(table, request, known)
        tokens = min(known, len(hits) * self.naive.block_tokens + chunk)
        for most in range(tokens, known + 1):
            self._same("fits_when_it_fits", self.real.can_allocate(hit, most, spare),
                       self.naive.can_allocate(hits, most, spare))
        if not self.naive.can_allocate(hits, tokens, spare):
            no_pair: Any = multiple()
            return no_pair
        self.real.attach_prefix(table, hit)
        self.naive.attach_prefix(request, hits)
        self._same("grows_when_it_fits", self.real.allocate(table, tokens), self.naive.allocate(request, tokens))
        self.live.append(pair)
        if publishes:
            self.publish(pair, tokens)
        return pair

    @rule(pair=running, tokens=st.integers(1, 40))
    def allocate(self, pair: Pair, tokens: int) -> None:
        self._same("grows_when_it_fits", self.real.allocate(pair[0], tokens), self.naive.allocate(pair[1], tokens))

    @rule(pair=running, tokens=st.integers(1, 40))
    def publish(self, pair: Pair, tokens: int) -> None:
        table, request = pair
        tokens = min(tokens, len(table.blocks) * self.real.block_tokens)
        self.real.publish(table, tokens)
        self.naive.publish(request, tokens)

    @rule(target=waiting, pair=consumes(running))
    def free(self, pair: Pair) -> Pair:
        """End or preempt a request, which may come back and find its blocks."""
        self.real.free(pair[0])
        self.naive.free(pair[1])
        self.live.remove(pair)
        return pair

    @rule(target=waiting, pair=running)
    def arrive_alike(self, pair: Pair) -> Pair:
        """Add a request with the same tokens as a running one."""
        return self._new(pair[0].content)

    @rule(pair=running, blocks=st.integers(1, 5))
    def find_whole_blocks(self, pair: Pair, blocks: int) -> None:
        table, request = BlockTable(pair[0].content), NaiveRequest(pair[1].content, -1)
        self._find_prefix(table, request, blocks * self.naive.block_tokens)

    @rule(content=_contents, known=st.integers(1, 30))
    def find_prefix(self, content: list[str], known: int) -> None:
        self._find_prefix(BlockTable(content), NaiveRequest(content, -1), known)

    @invariant()
    def each_user_is_counted(self) -> None:
        if self.real is None:
            return
        used = Counter(block for table, _ in self.live for block in table.blocks)
        self._same("each_user_is_counted", list(self.real.pool.ref_counts),
              [used[block] for block in range(self.naive.capacity)])
        self._same("no_block_is_lost", self.real.pool.free, self.naive.capacity - len(used))

    @invariant()
    def who_share_a_block_have_its_tokens(self) -> None:
        owners: dict[int, Any] = {}
        for table, request in self.live:
            for index, block in enumerate(table.blocks):
                prefix = request.prefix(index + 1)
                self._same("who_share_a_block_have_its_tokens", owners.setdefault(block, prefix), prefix)

    @invariant()
    def the_same_blocks(self) -> None:
        self._same("same_blocks_in_the_same_order", [table.blocks for table, _ in self.live],
              [request.blocks for _, request in self.live])

    @invariant()
    def the_same_prefixes(self) -> None:
        if self.real is not None:
            self._same("same_prefixes_are_found", {self._prefix(node): node.blocks for node in self.real.tree},
                  {names: blocks for names, blocks in self.naive.cached.items() if blocks})

    def teardown(self) -> None:
        """Allocate all free blocks at the end, which must come in the same order."""
        if self.real is not None:
            self._same("evicts_in_the_same_order", [self.real.pool.take() for _ in range(self.real.pool.free)],
                  self.naive.free_blocks)

    def _new(self, content: Sequence[Hashable]) -> Pair:
        table, number = BlockTable(content), len(self.numbers)
        self.numbers[table] = number
        return table, NaiveRequest(content, number)

    def _find_prefix(self, table: BlockTable, request: NaiveRequest, known: int) -> tuple[Any, list[int]]:
        hit, hits = self.real.find_prefix(table, known), self.naive.find_prefix(request, known)
        self._same("hit_leaves_last_token", hit.tokens >= known, False)
        self._same("finds_the_longest_prefix", [node.blocks[0] for node in hit.nodes], hits)
        return hit, hits

    def _prefix(self, node: BlockNode) -> Prefix:
        """The names on the path to *node*, in the form of the naive model.

        In the trie, the first block without a name is named by its request's table, and those after it by numbers.
        """
        names: list[Hashable] = []
        while node.parent is not None:
            names.insert(0, node.name)
            node = node.parent
        table = next((name for name in names if isinstance(name, BlockTable)), None)
        if table is None:
            return tuple(names)
        first = names.index(table)
        return (*names[:first], *((self.numbers[table], index) for index in range(first, len(names))))

    def _same(self, name: str, actual: Any, expected: Any) -> None:
        if actual != expected and (name in self.compared or not self.compared):
            raise CacheFault(name, f"{actual} in place of {expected}")

"""Hold a KV cache to a naive model, whatever is done to it."""

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

from ksim.kv_cache.cache import Holding
from ksim.kv_cache.kv_cache import KVCache
from ksim.kv_cache.radix import Node
from ksim.testing.naive import NaiveCache, NaiveRequest, Prefix

Pair = tuple[Holding, NaiveRequest]
MakeCache = Callable[[int, int, bool], Any]

_contents = st.lists(st.sampled_from("ab"), max_size=5)


class CacheFault(AssertionError):
    """`invariant` does not hold of a cache; the notes list what was done to it."""

    def __init__(self, invariant: str, problem: str):
        super().__init__(invariant, problem)
        self.invariant, self.problem = invariant, problem

    def __str__(self) -> str:
        return f"{self.invariant}: {self.problem}"


def check_cache(make_cache: MakeCache = KVCache, *, max_examples: int = 100, steps: int = 40,
                invariants: Sequence[str] = (), shrink: bool = True) -> None:
    """Compare a cache, made of capacity, block size and whether to cache prefixes, with lists and a dictionary.

    It must have the methods of `ksim.kv_cache.kv_cache.KVCache` and vLLM's
    order of eviction.  *invariants* names what is compared, by default all.
    Raises CacheFault with the shortest way to the fault.
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
    """One cache and its naive model, and the requests that hold blocks in both."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    def __init__(self, make_cache: MakeCache = KVCache, invariants: Sequence[str] = ()):
        super().__init__()
        self.compared = frozenset(invariants)
        self.make_cache = make_cache
        self.real: Any = None
        self.live: list[Pair] = []
        self.numbers: dict[Holding, int] = {}

    @initialize(capacity=st.integers(1, 20), block_tokens=st.integers(1, 4),
                prefix_caching=st.sampled_from([True, True, True, False]))
    def build(self, capacity: int, block_tokens: int, prefix_caching: bool) -> None:
        self.real = self.make_cache(capacity, block_tokens, prefix_caching)
        self.naive = NaiveCache(capacity, block_tokens, prefix_caching)

    @rule(target=waiting, content=_contents)
    def arrive(self, content: list[str]) -> Pair:
        return self._new(content)

    @rule(target=running, pair=consumes(waiting), known=st.integers(1, 16), whole=st.booleans(),
          chunk=st.sampled_from([30, 1, 2, 5]), spare=st.integers(0, 2), enters=st.sampled_from([True, False]))
    def admit(self, pair: Pair, known: int, whole: bool, chunk: int, spare: int, enters: bool) -> Any:
        """Whether it fits is the same for every number of tokens; *whole* blocks tempt it to find the last token."""
        known = self.naive.blocks(known) * self.naive.block_tokens if whole else known
        holding, request = pair
        hit, hits = self._look_up(holding, request, known)
        tokens = min(known, len(hits) * self.naive.block_tokens + chunk)
        for most in range(tokens, known + 1):
            self._same("fits_when_it_fits", self.real.fits(hit, most, spare), self.naive.fits(hits, most, spare))
        if not self.naive.fits(hits, tokens, spare):
            nobody: Any = multiple()
            return nobody
        self.real.open(holding, hit)
        self.naive.open(request, hits)
        self._same("grows_when_it_fits", self.real.grow(holding, tokens), self.naive.grow(request, tokens))
        self.live.append(pair)
        if enters:
            self.enter(pair, tokens)
        return pair

    @rule(pair=running, tokens=st.integers(1, 40))
    def grow(self, pair: Pair, tokens: int) -> None:
        self._same("grows_when_it_fits", self.real.grow(pair[0], tokens), self.naive.grow(pair[1], tokens))

    @rule(pair=running, tokens=st.integers(1, 40))
    def enter(self, pair: Pair, tokens: int) -> None:
        holding, request = pair
        tokens = min(tokens, len(holding.blocks) * self.real.block_tokens)
        self.real.enter(holding, tokens)
        self.naive.enter(request, tokens)

    @rule(target=waiting, pair=consumes(running))
    def close(self, pair: Pair) -> Pair:
        """It may come back, and find what it left."""
        self.real.close(pair[0])
        self.naive.close(pair[1])
        self.live.remove(pair)
        return pair

    @rule(target=waiting, pair=running)
    def arrive_alike(self, pair: Pair) -> Pair:
        """One more with the same tokens."""
        return self._new(pair[0].content)

    @rule(pair=running, blocks=st.integers(1, 5))
    def look_up_whole_blocks(self, pair: Pair, blocks: int) -> None:
        self._look_up(Holding(pair[0].content), NaiveRequest(pair[1].content, -1), blocks * self.naive.block_tokens)

    @rule(content=_contents, known=st.integers(1, 30))
    def look_up(self, content: list[str], known: int) -> None:
        self._look_up(Holding(content), NaiveRequest(content, -1), known)

    @invariant()
    def each_user_is_counted(self) -> None:
        if self.real is None:
            return
        used = Counter(block for holding, _ in self.live for block in holding.blocks)
        self._same("each_user_is_counted", list(self.real.pool.users),
              [used[block] for block in range(self.naive.capacity)])
        self._same("no_block_is_lost", self.real.pool.free, self.naive.capacity - len(used))

    @invariant()
    def who_share_a_block_have_its_tokens(self) -> None:
        owners: dict[int, Any] = {}
        for holding, request in self.live:
            for place, block in enumerate(holding.blocks):
                prefix = request.prefix(place + 1)
                self._same("who_share_a_block_have_its_tokens", owners.setdefault(block, prefix), prefix)

    @invariant()
    def the_same_blocks(self) -> None:
        self._same("same_blocks_in_the_same_order", [holding.blocks for holding, _ in self.live],
              [request.blocks for _, request in self.live])

    @invariant()
    def what_is_found(self) -> None:
        if self.real is not None:
            self._same("same_prefixes_are_found", {self._prefix(node): node.blocks for node in self.real.tree},
                  {names: blocks for names, blocks in self.naive.found.items() if blocks})

    def teardown(self) -> None:
        """At the end, all that is free is taken: in the same order."""
        if self.real is not None:
            self._same("evicts_in_the_same_order", [self.real.pool.take() for _ in range(self.real.pool.free)],
                  self.naive.free)

    def _new(self, content: Sequence[Hashable]) -> Pair:
        holding, number = Holding(content), len(self.numbers)
        self.numbers[holding] = number
        return holding, NaiveRequest(content, number)

    def _look_up(self, holding: Holding, request: NaiveRequest, known: int) -> tuple[Any, list[int]]:
        hit, hits = self.real.lookup(holding, known), self.naive.lookup(request, known)
        self._same("hit_leaves_last_token", hit.tokens >= known, False)
        self._same("finds_the_longest_prefix", [node.blocks[0] for node in hit.nodes], hits)
        return hit, hits

    def _prefix(self, node: Node) -> Prefix:
        """The path to *node*; below a request, which stands for its first block of its own, the tree but counts."""
        names: list[Hashable] = []
        while node.parent is not None:
            names.insert(0, node.name)
            node = node.parent
        own = next((name for name in names if isinstance(name, Holding)), None)
        if own is None:
            return tuple(names)
        first = names.index(own)
        return (*names[:first], *((self.numbers[own], place) for place in range(first, len(names))))

    def _same(self, name: str, found: Any, expected: Any) -> None:
        if found != expected and (name in self.compared or not self.compared):
            raise CacheFault(name, f"{found} in place of {expected}")

"""Check a scheduler with a KV connector, and report the smallest case that breaks an invariant."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ksim.kv.cache.block_cache import BlockCache
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.testing.connected import PlannedTransfer
from ksim.testing.history import EngineHistory
from ksim.testing.invariants import Breach, breach, limits, progress, transfers
from ksim.testing.strategies import cases
from ksim.testing.trial import NO_ERROR, Arrival, Case, PolicyFault, Subject

#: What must hold for a scheduler with a connector, by name.
TRANSFER_INVARIANTS: dict[str, Callable[[EngineHistory], Any]] = {invariant.__name__: invariant for invariant in (
    limits.token_budget, limits.sequence_limit, limits.one_share_each, limits.chunk_cap, limits.blocks_conserved,
    progress.nobody_lost, transfers.loads_keep_blocks, transfers.sends_keep_blocks, transfers.loads_are_awaited,
    transfers.loads_leave_room, transfers.computed_on_blocks_stay, transfers.preempted_gain_nothing,
    transfers.all_ends_once)}


def check_transfers(scheduler: Any = ConnectorScheduler, *, cache: Any = BlockCache, policy: Any = "fcfs",
                    max_examples: int = 200, number: int = 0, invariants: Sequence[str] = (),
                    shrink: bool = True) -> None:
    """Play a *scheduler* with a KV connector, and a *cache*, on many small cases.

    Loads take some turns, fail in part, or are aborted; blocks are held until they are sent.  Raises PolicyFault with
    the smallest case found that breaks an invariant of `TRANSFER_INVARIANTS`, or of those named.  The same *number*
    plays the same cases.
    """
    subject = Subject(policy, scheduler, cache)

    def play(case: Case) -> None:
        history = subject.play(case)
        if found := _fault(history, invariants):
            raise PolicyFault(found[0], subject.name, *found[1], case)

    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    options = settings(max_examples=max_examples, deadline=None, database=None, report_multiple_bugs=False,
                       phases=phases, suppress_health_check=list(HealthCheck))
    seed(number)(options(given(transfer_cases())(play)))()


def _fault(history: EngineHistory, names: Sequence[str]) -> tuple[str, Breach] | None:
    for name, invariant in TRANSFER_INVARIANTS.items():
        if (not names or name in names) and (found := breach(history, invariant)):
            return name, found
    if history.error is not None and (not names or NO_ERROR in names):
        return NO_ERROR, (len(history.schedules), f"{type(history.error).__name__}: {history.error}")
    return None


@st.composite
def transfer_cases(draw: st.DrawFn) -> Case:
    """Cases of an engine that loads, sends, or does both; some loads are aborted on their way."""
    case = draw(cases(aborts=False))
    consumes, produces = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    connector = {"consumes": consumes, "produces": produces, "recomputes": draw(st.booleans())}
    kinds = draw(st.lists(moves(connector["recomputes"]), min_size=1, max_size=4))
    arrivals = tuple(attrs.evolve(arrival, transfer=_fitted(kinds[place % len(kinds)], arrival))
                     for place, arrival in enumerate(case.coming))
    drops = draw(st.lists(st.tuples(st.integers(0, len(arrivals) - 1), st.integers(0, 8), st.booleans()), max_size=3))
    aborts = tuple((arrivals[number].turn + delay, number, when) for number, delay, when in drops)
    return Case(case.settings | {"connector": connector}, arrivals, aborts)


def moves(recomputes: bool) -> st.SearchStrategy[PlannedTransfer | None]:
    """What moves for a request, if anything; `stored` is in quarters of its prompt.

    A load that fails leaves its first block good where jobs recompute: vLLM stalls where one that begins again needs
    more than its blocks beside the room that it reserves for itself.
    """
    bad = [-1, -1, -1, 1] if recomputes else [-1, -1, -1, 0]
    some = st.builds(
        PlannedTransfer, stored=st.sampled_from([4, 1, 2, 4]), turns=st.sampled_from([0, 1, 3, 8, 20]),
        asynchronous=st.sampled_from([True, True, True, False]), unknown=st.sampled_from([0, 0, 0, 2]),
        bad=st.sampled_from(bad), sent=st.sampled_from([-1, 0, 3, 8]))
    return st.one_of(some, some, st.none())


def _fitted(transfer: PlannedTransfer | None, arrival: Arrival) -> PlannedTransfer | None:
    return None if transfer is None else attrs.evolve(transfer, stored=-(-arrival.prompt * transfer.stored // 4))

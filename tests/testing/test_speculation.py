"""The invariants of the kit hold for a scheduler that verifies drafts, and without drafts it is the plain one."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.scheduling.acceptances import DrawnSpeculation
from ksim.scheduling.acceptances.rates import Geometric
from ksim.scheduling.draft_scheduler import DraftScheduler
from ksim.scheduling.scheduler import Scheduler
from ksim.testing.history import EngineHistory
from ksim.testing.invariants import INVARIANTS, breach
from ksim.testing.loop import loop
from ksim.testing.strategies import cases
from ksim.testing.trial import Case, observe
from tests.properties import examples

#: A policy may starve requests, and FCFS does not.
CHECKED = {name: invariant for name, invariant in INVARIANTS.items() if name != "bounded_wait"}
speculations: st.SearchStrategy[Callable[..., DrawnSpeculation]] = st.builds(
    partial, st.just(DrawnSpeculation), k=st.integers(1, 5), rate=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99), lookahead=st.booleans(), keys_ahead=st.booleans(), drops_block=st.booleans(),
    input_slots=st.sampled_from([0, 0, 1]), match_rate=st.sampled_from([1.0, 1.0, 0.5]))


def speculation(drawn: partial[Any], ahead: bool) -> DrawnSpeculation:
    values = dict(drawn.keywords)
    k, rate, keys_ahead = values["k"], values.pop("rate"), values["keys_ahead"]
    return DrawnSpeculation(**values | {
        "lookahead": k * values["lookahead"], "drops_block": values["drops_block"] and not keys_ahead,
        "acceptance": Geometric(rate), "ahead": ahead})


def play(case: Case, scheduler: Any) -> EngineHistory:
    return observe(loop(scheduler=scheduler, **case.settings), case)


@given(case=cases(pipelines=False), drawn=speculations)
@examples(120)
def test_invariants_hold_with_drafts(case, drawn):
    drafter = speculation(drawn, case.settings["async_scheduling"])
    slots = drafter.k + drafter.lookahead
    budget = case.settings["max_num_batched_tokens"] + slots + drafter.input_slots * (1 + len(case.arrivals))
    blocks = case.settings["blocks"] + -(-slots // case.settings["block_tokens"])
    roomy = evolve(case, settings=case.settings | {"blocks": blocks, "max_num_batched_tokens": budget})
    history = play(roomy, partial(DraftScheduler, speculation=drafter))
    assert history.error is None, history.error
    for name, invariant in CHECKED.items():
        assert (found := breach(history, invariant)) is None, (name, found)


@given(case=cases())
@examples(60)
def test_a_drafter_that_proposes_nothing_changes_nothing(case):
    drafter = DrawnSpeculation(k=0, lookahead=0, drops_block=False, keys_ahead=False, input_slots=0,
                               acceptance=Geometric(0.5), ahead=case.settings["async_scheduling"])
    plain, drafted = play(case, Scheduler), play(case, partial(DraftScheduler, speculation=drafter))
    assert plain.error is None and drafted.error is None
    assert drafted.moments == plain.moments

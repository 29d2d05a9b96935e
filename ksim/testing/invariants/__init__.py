"""What must hold for any scheduler: each invariant is a function from a history to its breaches, (step, problem)."""

from collections.abc import Callable, Iterator

from ksim.testing.history import EngineHistory
from ksim.testing.invariants import limits, progress, sglang, tokens

Breach = tuple[int, str]
Invariant = Callable[[EngineHistory], Iterator[Breach]]

#: All invariants by name.  `everything_ends` holds for all policies, `bounded_wait` for those without starvation.
INVARIANTS: dict[str, Invariant] = {
    invariant.__name__: invariant for invariant in (
        limits.token_budget, limits.sequence_limit, limits.one_share_each, limits.chunk_cap, limits.whole_prompts,
        limits.watermark_kept, limits.whole_prompt_reserved,
        limits.blocks_conserved, limits.blocks_fit_tokens, limits.waiting_hold_nothing, limits.all_blocks_return,
        tokens.tokens_in_order, tokens.exact_tokens, tokens.preemption_keeps_tokens,
        tokens.nothing_in_flight_when_admitted, tokens.hit_leaves_last_token, tokens.hits_were_computed,
        tokens.counters_grow,
        progress.nobody_lost, progress.no_idle_step, progress.everything_ends, progress.bounded_wait,
        progress.work_conserved, progress.no_overtaking, progress.no_admission_after_preemption,
    )
}

#: Those that hold for SGLang's scheduler, and any with its rules.
SGLANG_INVARIANTS: dict[str, Invariant] = {
    invariant.__name__: invariant for invariant in (
        sglang.prompt_budget, limits.sequence_limit, limits.one_share_each, sglang.memory_reserved,
        sglang.pages_fit_tokens, limits.all_blocks_return,
        tokens.tokens_in_order, tokens.exact_tokens, tokens.preemption_keeps_tokens,
        tokens.nothing_in_flight_when_admitted, tokens.hit_leaves_last_token, tokens.hits_were_computed,
        tokens.counters_grow,
        progress.nobody_lost, progress.no_idle_step, progress.everything_ends, progress.no_overtaking,
        sglang.full_hides_queue, sglang.order_after_retraction, sglang.retracted_wait_last,
    )
}


def breach(history: EngineHistory, invariant: Invariant) -> Breach | None:
    """The first breach of *invariant*, if there is one."""
    return next(invariant(history), None)

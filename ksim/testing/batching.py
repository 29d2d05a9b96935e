"""Statements about batching, each as a check that plays a case several times and compares the runs."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, given, seed, settings

from ksim.testing.history import EngineHistory
from ksim.testing.loop import loop
from ksim.testing.strategies import cases
from ksim.testing.trial import Case, PolicyFault, Subject, observe

Check = Callable[[Any, Case], str | None]


def check_batching(policy: Any = "fcfs", *, checks: tuple[str, ...] = (), max_examples: int = 60,
                   number: int = 0) -> None:
    """Check *policy* against `CHECKS`, or against those named; raise PolicyFault with the smallest failing case."""
    def play(case: Case) -> None:
        for name in checks or CHECKS:
            if problem := CHECKS[name](policy, case):
                raise PolicyFault(name, Subject(policy).name, 0, problem, case)

    options = settings(max_examples=max_examples, deadline=None, database=None, report_multiple_bugs=False,
                       phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
    seed(number)(options(given(cases(aborts=False, starving=False))(play)))()


def permutation(policy: Any, case: Case) -> str | None:
    """The order of requests that arrive together changes no request's number of tokens.

    If all are equal, the steps stay the same too.
    """
    once = attrs.evolve(case, arrivals=tuple(attrs.evolve(arrival, turn=0) for arrival in case.arrivals))
    turned = attrs.evolve(once, arrivals=once.arrivals[::-1])
    mine, theirs = Subject(policy).play(once), Subject(policy).play(turned)
    if outputs(mine) != outputs(theirs)[::-1]:
        return f"outputs are {outputs(mine)}, and in the opposite order {outputs(theirs)[::-1]}"
    if len(set(once.arrivals)) == 1 and steps(mine) != steps(theirs):
        return f"equal requests take {steps(mine)} steps, and in the opposite order {steps(theirs)}"
    return None


def splitting(policy: Any, case: Case) -> str | None:
    """Requests get the same number of tokens on one engine as on two that each get every other request."""
    whole = outputs(Subject(policy).play(case))
    for part in (0, 1):
        if arrivals := case.coming[part::2]:
            alone = outputs(Subject(policy).play(attrs.evolve(case, arrivals=arrivals)))
            if alone != whole[part::2]:
                return f"outputs are {whole[part::2]} together, and {alone} apart"
    return None


def time_scaling(policy: Any, case: Case) -> str | None:
    """If arrivals and steps take four times as long, the schedules stay the same (unless deadlines are in seconds)."""
    slow = loop(policy=Subject(policy).fresh(), **case.settings)
    slow.tick = 4.0
    mine, theirs = Subject(policy).play(case), observe(slow, case)
    if schedule(mine) != schedule(theirs):
        return "another batch is made when time is scaled"
    return None


def chunk_size(policy: Any, case: Case) -> str | None:
    """The size of chunks changes no request's output tokens, nor its computed tokens where no request is preempted."""
    found = []
    for threshold in (0, 1, 3, 8):
        cut = case.settings | {"long_prefill_token_threshold": threshold, "prefix_caching": False, "blocks": 2000}
        history = Subject(policy).play(attrs.evolve(case, settings=cut))
        preempted = any(moment.preempted for moment in history.moments)
        stops = history.limits.async_scheduling and any(arrival.overrun for arrival in case.arrivals)
        found.append((outputs(history), None if preempted or stops else computed(history)))
    if len({tuple(output) for output, _ in found}) > 1:
        return f"outputs depend on the size of chunks: {found}"
    if len({total for _, total in found}) > 1:
        return f"tokens computed depend on the size of chunks: {[total for _, total in found]}"
    return None


def more_blocks(policy: Any, case: Case) -> str | None:
    """With enough blocks for all requests, a run ends no later than with few blocks.

    This holds for first come, first served, without a prefix cache, with whole prompts, with a token budget and
    sequence slots for all, and with one batch at a time.
    """
    roomy = {"prefix_caching": False, "max_num_batched_tokens": 100_000, "max_num_seqs": 1000, "watermark": 0.0,
             "long_prefill_token_threshold": 0, "prefill_schedule_interval": 1, "pipeline_parallel_size": 1,
             "async_scheduling": False, "enable_chunked_prefill": True}
    few = attrs.evolve(case, settings=case.settings | roomy)
    many = attrs.evolve(few, settings=few.settings | {"blocks": 5000})
    short, long = steps(Subject(policy).play(few)), steps(Subject(policy).play(many))
    return f"{long} steps with blocks for all, and {short} with {few.settings['blocks']}" if long > short else None


def outputs(history: EngineHistory) -> list[int]:
    """Output tokens of each request."""
    return [job.sampled for job in history.jobs]


def computed(history: EngineHistory) -> int:
    """All computed tokens."""
    return sum(share.tokens for moment in history.schedules for share in moment.shares)


def steps(history: EngineHistory) -> int:
    """The step that sampled the last token."""
    return max((moment.step for moment in history.updates if moment.finished), default=0)


def schedule(history: EngineHistory) -> list[Any]:
    return [(m.step, m.shares, m.preempted, Counter(m.finished)) for m in history.moments]


CHECKS: dict[str, Check] = {check.__name__: check for check in
                            (permutation, splitting, time_scaling, chunk_size, more_blocks)}

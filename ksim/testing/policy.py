"""Check a policy against the invariants, and report the smallest case that breaks one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from ksim.scheduling.scheduler import Scheduler
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.testing.invariants import INVARIANTS, SGLANG_INVARIANTS
from ksim.testing.loop import is_sglang
from ksim.testing.strategies import cases, replayable_cases, sglang_cases
from ksim.testing.trial import NAMES_DO_NOT_MATTER, NO_ERROR, SAME_AS_PLAIN, Case, PolicyFault, Subject, examine, files

#: Cases that a check plays by default.  Half of them can be written as a scenario, half use every feature.
EXAMPLES = 200
#: Smaller cases that are tried after the first fault.
SHRINKS = 400
_NAMES = (*INVARIANTS, *(SGLANG_INVARIANTS.keys() - INVARIANTS), NO_ERROR, NAMES_DO_NOT_MATTER, SAME_AS_PLAIN)
#: The schedulers on which a policy can be played, by the engine whose rules they have.
SCHEDULERS = {"vllm": Scheduler, "sglang": SglangScheduler}


def check_policy(policy: Any, *, engine: str = "vllm", admission: Any = "always", starves: bool = False,
                 conserves_work: bool = True, max_examples: int = EXAMPLES, seed: int = 0,
                 invariants: Sequence[str] = (), shrink: bool = True, write_to: str | Path | None = None) -> None:
    """Play *policy* on many small cases; raise PolicyFault with the smallest one found that breaks an invariant.

    *policy* and *admission* are each a class, an object, or a name as in a scenario.  A policy that lets some
    requests wait as long as others arrive (priority, shortest first) `starves`: it is exempt from `bounded_wait`, but
    not from `everything_ends`.  A policy that leaves sequence slots empty on purpose does not conserve work: it is
    exempt from `work_conserved`, but not from `no_idle_step`.  *invariants* names the invariants to check, by default
    all.  If *write_to* is given, the case is written there as a scenario file, with its trace beside it under the
    same name.  The same *seed* plays the same cases.

    *engine* says whose scheduler asks the policy: "vllm", or "sglang", which asks for an order and a victim only, and
    has rules of its own (`SGLANG_INVARIANTS`).  A case on SGLang's is told in words; it is no scenario file.
    """
    if engine not in SCHEDULERS:
        raise ValueError(f"no engine named {engine}; there are {', '.join(SCHEDULERS)}")
    check_scheduler(SCHEDULERS[engine], policy=policy, admission=admission, starves=starves,
                    conserves_work=conserves_work, max_examples=max_examples, seed=seed, invariants=invariants,
                    shrink=shrink, write_to=write_to)


def check_scheduler(scheduler: Any, *, cache: Any = None, policy: Any = "fcfs", admission: Any = "always",
                    starves: bool = False, conserves_work: bool = True, max_examples: int = EXAMPLES, seed: int = 0,
                    invariants: Sequence[str] = (), shrink: bool = True, write_to: str | Path | None = None) -> None:
    """Do the same as `check_policy` for a *scheduler* or a *cache* of your own: classes such as ksim's.

    They are also compared with ksim's own, step by step.  A subclass of `SglangScheduler` is held to SGLang's rules.
    """
    if unknown := set(invariants) - set(_NAMES):
        raise ValueError(f"no invariants named {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}")
    subject = Subject(policy, scheduler, cache, admission, starves, conserves_work, tuple(invariants))
    subject.engine()
    name = "counter_example" if write_to is None else Path(write_to).name.removesuffix(".toml")
    kinds = [sglang_cases] if is_sglang(scheduler) else [replayable_cases, cases]
    searches = (_search(subject, kind(starving=not starves), max(max_examples // len(kinds), 1), seed, shrink, name)
                for kind in kinds)
    fault = next(filter(None, searches), None)
    if fault is not None:
        if write_to is not None:
            _write(fault, Path(write_to))
        raise fault


def _search(subject: Subject, strategy: SearchStrategy[Case], examples: int, number: int, shrink: bool,
            name: str) -> PolicyFault | None:
    """The fault with the smallest case found, or None; its trace is called *name*."""
    best: list[PolicyFault] = []
    tries = 0

    def play(case: Case) -> None:
        nonlocal tries
        tries += bool(best)
        if tries > SHRINKS:  # enough: from now on, only the smallest case so far counts as a fault
            if case == best[-1].case:
                raise best[-1]
        elif found := examine(subject, case):
            best.append(_fault(subject, case, name, *found))
            raise best[-1]

    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    options = hypothesis_settings(max_examples=examples, deadline=None, database=None, phases=phases,
                                  suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    run: Callable[[], None] = seed(number)(options(given(strategy)(play)))
    try:
        run()
    except PolicyFault as fault:
        return fault.with_traceback(None)
    except Flaky:
        return PolicyFault("same_each_time", subject.name, 0, "the same case, played again, went otherwise: what it "
                           "decides must depend on nothing but what it is shown")
    return None


def _fault(subject: Subject, case: Case, name: str, invariant: str, step: int, problem: str) -> PolicyFault:
    note = f"{subject.name} breaks {invariant} in step {step}: {problem}"
    if is_sglang(subject.scheduler):
        return PolicyFault(invariant, subject.name, step, problem, case)
    written = files(case, subject.policy, name, note)
    return PolicyFault(invariant, subject.name, step, problem, case, scenario=written.scenario, trace=written.trace,
                       trace_name=written.trace_name)


def _write(fault: PolicyFault, path: Path) -> None:
    if fault.scenario:
        path.write_text(fault.scenario)
        (path.parent / fault.trace_name).write_text(fault.trace)

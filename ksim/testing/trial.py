"""Play one case and check the invariants on its history."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import zip_longest
from math import inf
from typing import Any

from attrs import field, frozen

from ksim.foundation import catalog
from ksim.kv_cache.block_cache import BlockCache
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.job import Job
from ksim.scheduling.scheduler import Scheduler
from ksim.testing.case import Case, Naming
from ksim.testing.history import History, Recorder, digest
from ksim.testing.invariants import INVARIANTS, Invariant, breach
from ksim.testing.invariants.progress import longest
from ksim.testing.loop import Loop, loop

#: Checks beside the invariants of a single history.
NAMES_DO_NOT_MATTER, SAME_AS_PLAIN, NO_ERROR = "names_do_not_matter", "same_as_plain_scheduler", "no_error"
_ORDERED = ("work_conserved", "no_overtaking", "no_admission_after_preemption")


class BackwardsJob(Job):
    """A job whose hash puts it in the opposite order in sets and dictionaries."""

    def __hash__(self) -> int:
        return 1_000_003 - self.number


class ForwardsJob(Job):
    """A job that sets keep in order of its number, so that runs that depend on sets can be repeated."""

    def __hash__(self) -> int:
        return self.number


@frozen
class Subject:
    """What is tested: a policy, the scheduler that calls it, and a cache.

    `starves` and `conserves_work` are as in `check_policy`; `invariants` names the invariants to check.
    """

    policy: Any
    scheduler: Any = Scheduler
    cache: Any = BlockCache
    admission: Any = Always
    starves: bool = False
    conserves_work: bool = True
    invariants: Sequence[str] = field(default=())

    @property
    def name(self) -> str:
        if isinstance(self.policy, str):
            return self.policy
        return self.kind.__name__ if self.scheduler is Scheduler else self.scheduler.__name__

    @property
    def kind(self) -> type:
        """The class of the policy."""
        return type(self.fresh())

    def fresh(self) -> Any:
        """A policy without any state of earlier runs."""
        return _fresh("scheduling.policies", self.policy)

    @property
    def checked(self) -> dict[str, Invariant]:
        """The invariants that apply to this policy."""
        left_out = {"bounded_wait"} if self.starves else set()
        proposes = hasattr(self.kind, "propose")
        if proposes:
            left_out |= set(_ORDERED)
        if not self.conserves_work or self.admission is not Always:
            left_out |= {"work_conserved"}
        return {name: invariant for name, invariant in INVARIANTS.items()
                if name not in left_out and self.wants(name)}

    def wants(self, name: str) -> bool:
        return not self.invariants or name in self.invariants

    def play(self, case: Case, naming: Naming | None = None, job_class: type[Job] = ForwardsJob) -> History:
        """The history of *case*: until all requests are done, an error is raised, or the run can no longer end."""
        engine = loop(policy=self.fresh(), admission=_fresh("scheduling.admissions", self.admission),
                      scheduler=self.scheduler, cache=self.cache, **case.settings)
        return observe(engine, case, naming, job_class)


def _fresh(folder: str, named: Any) -> Any:
    """An object of the class *named*, or a copy of the object."""
    found = catalog.find(folder, named) if isinstance(named, str) else named
    return found() if isinstance(found, type) else deepcopy(found)


def observe(engine: Loop, case: Case, naming: Naming | None = None, job_class: type[Job] = ForwardsJob) -> History:
    """Play *case* on *engine* and record the history."""
    recorder = Recorder(engine.scheduler)
    engine.scheduler, engine.job_class = recorder, job_class
    history, last = recorder.history, inf
    try:
        for _ in case.play(engine, naming):
            if last == inf and len(history.jobs) == len(case.arrivals):
                last = history.arrived[-1] + longest(history) + 1
            if engine.turns > last:
                break
    except Exception as error:  # a policy may raise anything; that is a fault too
        history.error = error
    return history


def examine(subject: Subject, case: Case) -> tuple[str, int, str] | None:
    """The first invariant that *case* breaks, the step, and the problem; None if all hold."""
    history = subject.play(case)
    for name, invariant in subject.checked.items():
        if found := breach(history, invariant):
            return name, *found
    if history.error is not None:
        return _raised(history) if subject.wants(NO_ERROR) else None
    for name, compare in COMPARED.items():
        if subject.wants(name) and (found := compare(subject, case, history)):
            return name, *found
    return None


def _raised(history: History) -> tuple[str, int, str]:
    step = history.moments[-1].step + 1 if history.moments else 1
    return NO_ERROR, step, f"{type(history.error).__name__}: {history.error}"


def _other_names(subject: Subject, case: Case, history: History) -> tuple[int, str] | None:
    """The same must happen with other request ids, other names of contents, and sets in another order."""
    other = Naming(request=lambda number: (7919 * number + 13) % 10007, content=lambda name: (name[1], -name[0]))
    return _difference(history, subject.play(case, other, BackwardsJob), "with other names of requests and contents")


def _plain(subject: Subject, case: Case, history: History) -> tuple[int, str] | None:
    """The same must happen as on ksim's own scheduler and cache."""
    if subject.scheduler is Scheduler and subject.cache is BlockCache:
        return None
    plain = Subject(subject.policy, admission=subject.admission)
    return _difference(history, plain.play(case), "on ksim's own scheduler and cache")


COMPARED: dict[str, Callable[[Subject, Case, History], tuple[int, str] | None]] = {
    NAMES_DO_NOT_MATTER: _other_names, SAME_AS_PLAIN: _plain}


def _difference(history: History, other: History, where: str) -> tuple[int, str] | None:
    pairs = zip_longest(digest(history), digest(other))
    for place, (mine, theirs) in enumerate(pairs):
        if mine != theirs:
            step = history.moments[min(place, len(history.moments) - 1)].step
            return step, f"{where}, it differs: {theirs} in place of {mine}"
    return None

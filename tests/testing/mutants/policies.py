"""Policies that are wrong although the scheduler enforces the limits."""

from ksim.scheduling.policies import ALL
from ksim.testing import check_policy
from tests.testing.mutants import Mutant


class LastComeFirst:
    def order(self, job):
        return -job.number


class PassesOverLong:
    """Proposes no prompt of more than three tokens."""

    def propose(self, waiting, running, now):
        yield from ((job, ALL) for job in running)
        yield from ((job, ALL) for job in waiting if job.num_tokens <= 3)


class BySetOrder:
    def propose(self, waiting, running, now):
        yield from ((job, ALL) for job in running)
        yield from ((job, ALL) for job in set(waiting))


class ByRequestId:
    def order(self, job):
        return job.request.id % 5, job.number


class ProposesTwice:
    def propose(self, waiting, running, now):
        yield from ((job, 1) for job in [*running, *waiting, *running])


class RemembersOtherRuns:
    """Counts its calls on the class, so that the count survives into the next run."""

    calls = 0

    def propose(self, waiting, running, now):
        RemembersOtherRuns.calls += 1
        yield from ((job, ALL) for job in (running if self.calls % 7 < 4 else running[::-1]))
        yield from ((job, ALL) for job in waiting)


class VllmPriority:
    """vLLM's priority policy: of requests with equal priority and arrival, the first one is the victim."""

    def order(self, job):
        return job.request.priority, job.request.arrival, job.number

    def victim(self, running):
        return max(running, key=lambda job: (job.request.priority, job.request.arrival))


def mutant(name: str, what: str, broken: str, kind: type, starves: bool = False) -> Mutant:
    return Mutant(name, what, broken, lambda only: check_policy(kind, invariants=only, starves=starves, shrink=False))


MUTANTS = [
    mutant("last_come_first", "the latest request goes first", "bounded_wait", LastComeFirst),
    mutant("passes_over_long", "long prompts are never proposed", "no_idle_step", PassesOverLong, starves=True),
    mutant("equals_rob_each_other", "two requests preempt each other for ever", "everything_ends", VllmPriority,
           starves=True),
    mutant("by_set_order", "the order of a set decides who is admitted", "names_do_not_matter", BySetOrder),
    mutant("by_request_id", "request ids decide the order", "names_do_not_matter", ByRequestId, starves=True),
    mutant("proposes_twice", "one request is proposed twice", "no_error", ProposesTwice, starves=True),
    mutant("remembers_other_runs", "decisions depend on earlier runs", "names_do_not_matter", RemembersOtherRuns,
           starves=True),
]

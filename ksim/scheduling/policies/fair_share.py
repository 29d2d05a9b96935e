"""A fair share for each tenant: who has been served least comes first."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from attrs import define, field
from attrs.validators import ge

from ksim.scheduling.job import Job, State
from ksim.scheduling.policies import ALL, Waiting, Wish
from ksim.scheduling.queues import ArrivalQueue

__all__ = ["FairShare"]


@define(eq=False)
class FairShare:
    """The virtual token counter: of the tenants that wait, the one served least has its first request admitted next.

    Source: Sheng et al., Fairness in Serving Large Language Models (OSDI 2024).
    Good for: one tenant's flood that must not drown the others; two that always
    have requests waiting differ by a bounded service, whatever they send.  A
    tenant is charged `prompt_weight` for each token of a prompt when it is first
    admitted, and `output_weight` for each that comes out.  One that comes back
    after a pause starts from the least of those that wait: it cannot save up its
    share.  Running jobs go on in order of admission, and the last admitted gives
    way.

        scheduling_policy = {name = "fair_share", prompt_weight = 1.0, output_weight = 2.0}
    """

    prompt_weight: float = field(default=1.0, validator=ge(0))
    output_weight: float = field(default=2.0, validator=ge(0))
    #: Weighted tokens by tenant, since the start of the run.
    served: defaultdict[str, float] = field(factory=lambda: defaultdict(float), init=False)
    #: Jobs admitted, and how many of their output tokens are paid for.
    _charged: dict[Job, int] = field(factory=dict, init=False, repr=False)

    def queue(self) -> "TenantQueue":
        return TenantQueue(self.served)

    def propose(self, waiting: Waiting, running: Sequence[Job], now: float) -> Iterator[Wish]:
        self._charge_outputs()
        yield from ((job, ALL) for job in running)
        for job in waiting:
            yield job, ALL
            if job.state is State.RUNNING and job not in self._charged:
                self._charged[job] = 0
                self.served[job.request.tenant] += self.prompt_weight * job.request.prompt

    def _charge_outputs(self) -> None:
        for job, paid in list(self._charged.items()):
            self.served[job.request.tenant] += self.output_weight * (job.sampled - paid)
            self._charged[job] = job.sampled
            if job.state is State.DONE:
                del self._charged[job]


@define(eq=False)
class TenantQueue:
    """Each tenant's jobs first come, first served; next comes the first of the tenant that is `served` least."""

    served: defaultdict[str, float]
    _lines: dict[str, ArrivalQueue] = field(factory=dict)
    _latest: str = ""  # the last tenant to have left

    def add(self, job: Job) -> None:
        tenant = job.request.tenant
        if tenant not in self._lines:
            self._lift(tenant)
        self._line(tenant).add(job)

    def put_back(self, job: Job) -> None:
        self._line(job.request.tenant).put_back(job)

    def remove(self, job: Job) -> None:
        tenant = job.request.tenant
        self._lines[tenant].remove(job)
        if not self._lines[tenant]:
            del self._lines[tenant]
            self._latest = tenant

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and job in self._lines.get(job.request.tenant, ())

    def __iter__(self) -> Iterator[Job]:
        heads = {tenant: iter(line) for tenant, line in self._lines.items()}
        while heads:
            tenant = min(heads, key=self.served.__getitem__)
            job = next(heads[tenant], None)
            if job is None:
                del heads[tenant]
            else:
                yield job

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def _line(self, tenant: str) -> ArrivalQueue:
        return self._lines.setdefault(tenant, ArrivalQueue())

    def _lift(self, tenant: str) -> None:
        """Let *tenant*, none of whose jobs wait, start from the least of those that do, or from the last to leave."""
        floor = min(self.served[other] for other in self._lines or (self._latest,))
        self.served[tenant] = max(self.served[tenant], floor)

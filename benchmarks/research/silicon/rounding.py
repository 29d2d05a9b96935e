"""Engines whose decode steps are priced at rounded contexts, so that equal ones are priced once.

A run of hundreds of thousands of steps, on dozens of ranks, then takes a minute instead of an hour.
"""

from collections.abc import Sequence
from typing import Any

from attrs import define, evolve, field, fields, frozen

from ksim.cost.step import Passes, StepTimer, Timer
from ksim.flow.batch import Batch
from ksim.flow.costs import StepSummary
from ksim.flow.steps import StepCost
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet

#: The mean context of a batch is rounded to so many tokens, a third of a per cent of what silicon samples decode after.
CONTEXT = 16
#: The tokens of all data ranks together are rounded to such a share of them, and the most of a rank to so many.
SHARE, MOST = 64, 8


@define
class RoundedTimer(StepTimer):
    """A step timer that prices batches without prompts as if all contexts were the rounded mean.

    Engines of a pool share what is `known`: their ranks differ in their numbers alone.
    """

    known: dict[tuple[int, ...], StepCost] = field(kw_only=True, repr=False)
    summaries: dict[tuple[int, ...], StepSummary] = field(kw_only=True, repr=False)

    @property
    def summarizes(self) -> bool:
        """Whether steps of data ranks are summarized first: no, as what is known of them is their cost."""
        return False

    def summarize(self, batches: Batch | Sequence[Batch],
                  tokens_by_rank: Sequence[int] = ()) -> StepSummary:
        if not isinstance(batches, Batch):
            return StepSummary.stacked([self.summarize(batch) for batch in batches])
        key = _rounded(batches)
        if key is None:
            return StepTimer.summarize(self, batches)
        if key not in self.summaries:
            self.summaries[key] = StepTimer.summarize(self, _alike(*key))
        return self.summaries[key]

    def step_cost(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> StepCost:
        key = _rounded(batch)
        if key is None:
            return StepTimer.step_cost(self, batch, tokens_by_rank)
        total, most = sum(tokens_by_rank), max(tokens_by_rank, default=0)
        whole = (*key, total // max(1, total // SHARE), -(-most // MOST))
        if whole not in self.known:
            self.known[whole] = StepTimer.step_cost(self, _alike(*key), tokens_by_rank)
        return self.known[whole]


def _rounded(batch: Batch) -> tuple[int, int, int, int] | None:
    """How many sequences a batch has, and their mean context, rounded; the new tokens of each, and drafts among them.

    None for a batch with prompts, or of nobody.
    """
    if batch.chunks or batch.prompts or not batch.samples:
        return None
    sequences = len(batch.contexts)
    return sequences, CONTEXT * round(batch.contexts.total / sequences / CONTEXT), batch.width, batch.drafts


def _alike(sequences: int, context: int, width: int, drafts: int) -> Batch:
    return evolve(Batch.of(*[(width, context)] * sequences, width=width), drafts=drafts)


@frozen
class RoundedDeployment(Deployment):
    """A deployment whose engines have rounded timers."""

    _known: dict[int, dict[tuple[int, ...], StepCost]] = field(factory=dict, eq=False, repr=False)
    _summaries: dict[int, dict[tuple[int, ...], StepSummary]] = field(factory=dict, eq=False, repr=False)

    def timers(self, first: int = 0, firsts: Sequence[int] = ()) -> list[Timer]:
        timers = super().timers(first, firsts)
        return timers if len(timers) > 1 else [self._rounded(timers[0])]

    def _rounded(self, timer: Timer) -> Timer:
        """*timer* with its steps rounded, and those of all its passes."""
        if isinstance(timer, Passes):
            others = [evolve(other, timer=self._rounded_pass(other.timer, place))
                      for place, other in enumerate(timer.others, start=1)]
            return Passes(self._rounded_pass(timer.main, 0), others)
        return self._rounded_pass(timer, 0)

    def _rounded_pass(self, timer: StepTimer, place: int) -> RoundedTimer:
        return RoundedTimer(**_values(timer, StepTimer), known=self._known.setdefault(place, {}),
                            summaries=self._summaries.setdefault(place, {}))


def rounded(scenario: Scenario) -> Fleet:
    """The fleet of *scenario*, its steps rounded."""
    fleet = Fleet.of(scenario)
    pools = (evolve(pool, deployment=RoundedDeployment(**_values(pool.deployment, Deployment))) for pool in fleet.pools)
    return evolve(fleet, pools=tuple(pools))


def _values(whole: StepTimer | Deployment, kind: type) -> dict[str, Any]:
    """What *whole* is made of, by the names of arguments."""
    return {part.alias: getattr(whole, part.name) for part in fields(kind) if part.init}

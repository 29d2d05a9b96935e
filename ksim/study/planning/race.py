"""The race of the finalists: the best options by estimates are simulated until none can beat the winner.

An option is tried with the replicas of its estimate, with more where these are too few, and with fewer where targets
have room, but never with more than cost as much as the winner so far.  One whose estimate says that it is surely dearer
drops out unsimulated.  A single replication is enough where it is sure; the winner has as many as an interval takes.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from time import monotonic

from attrs import evolve, field, frozen

from ksim.foundation.errors import KsimError, WorkerLost
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.study.capacity.judge import LIVES, Judge, SetUp, keeps
from ksim.study.capacity.search import RatePoint
from ksim.study.capacity.targets import FEWEST, Target
from ksim.study.capacity.traffic import gpus_of
from ksim.study.experiment import scenario_at
from ksim.study.planning.fleets import grown
from ksim.study.planning.ranking import EQUAL, Option, PlanQuestion, cost_of, costs_of

#: How many more replicas than estimated are tried.
_MORE = 3
#: Targets that are used to less than this share leave room for fewer replicas.
_ROOM = 0.8
#: The pool of engines apart that has to grow for a target of this metric; for all others, the one that prefills.
_GROWS = {"tpot": "decode", "itl": "decode"}


@frozen(eq=False)
class Finalist:
    """An option that was simulated: `option` as it was estimated, `setup` what was simulated with so many `replicas`.

    `point` is what came out at the rate, `guessed` with the replicas of the estimate, and `costs` what that costs.
    `problem` says why it does not carry the rate; `fewer` that one replica less was simulated too, and does not.
    """

    option: Option
    setup: SetUp
    replicas: int
    point: RatePoint | None = field(default=None, repr=False)
    costs: Mapping[str, float] = field(factory=dict)
    problem: str = ""
    fewer: bool = False
    guessed: RatePoint | None = field(default=None, repr=False)

    @property
    def gpus(self) -> int:
        return self.replicas * self.setup.gpus

    @property
    def stands(self) -> bool:
        """Whether it keeps the targets."""
        return not self.problem and self.point is not None

    def order(self, objectives: Sequence[str]) -> tuple[float, ...]:
        """As of `Option`, by what was simulated."""
        return (round(cost_of(self.costs, objectives), 6), float("pools" in self.setup.settings), self.costs["joules"])

    @property
    def binds(self) -> Target | None:
        """The target that is closest to its limit."""
        values = self.point.values if self.point else {}
        return max(values, key=lambda target: values[target][0] / target.limit, default=None)


def set_up(scenario: Scenario, option: Option) -> SetUp:
    """What *option* makes of *scenario*: one replica, or the pools of engines apart."""
    made = scenario_at(scenario, option.settings)
    return SetUp(option.name, option.settings, made, gpus_of(Fleet.of(made)))


@frozen(eq=False)
class Race:
    """The race of options for a `question`, by the `judge`'s runs; it ends at the moment `until` of the clock."""

    scenario: Scenario
    question: PlanQuestion
    judge: Judge
    objectives: tuple[str, ...]
    until: float
    say: Callable[[str], None]

    def run(self, ranked: Sequence[Option], most: int) -> list[Finalist]:
        """The finalists of *ranked* options, the best by simulation first; no more than the *most* are simulated.

        Where none of these carries the rate, others follow.
        """
        ended = list[Finalist]()
        for option in ranked:
            best = self._best(ended)
            if ended and monotonic() > self.until:
                break
            if best is None or self._may_win(option, best, len(ended) < most):
                self.say(option.name)
                ended.append(self.tried(option, best))
        self._confirm(ended)
        return sorted(ended, key=lambda one: (not one.stands, self._order(one) if one.stands else ()))

    def _best(self, ended: Sequence[Finalist]) -> Finalist | None:
        return min((one for one in ended if one.stands), key=self._order, default=None)

    def _confirm(self, ended: list[Finalist]) -> None:
        """Run the best of those that have *ended* as often as an interval takes; if it fails now, the next one, too."""
        while (best := self._best(ended)) is not None:
            now = self._now(best.option, best)
            again = self._simulated(best.option, now, FEWEST)
            if not again.stands and again.point is not None and monotonic() < self.until:
                again = self._simulated(best.option, _grown(now, again.point), FEWEST)
            ended[ended.index(best)] = evolve(again, fewer=best.fewer, guessed=best.guessed)
            if again.stands and again.replicas == best.replicas and again.setup.settings == best.setup.settings:
                return

    def _order(self, one: Finalist) -> tuple[float, ...]:
        return one.order(self.objectives)

    def _may_win(self, option: Option, best: Finalist, runner_up: bool) -> bool:
        """Whether *option* costs less than *best*, or may do so with one replica less.

        The latter, what costs the same, and what costs less by one of several objectives counts only for a *runner_up*,
        while there are not yet enough of them.
        """
        cost, least = (cost_of(costs, self.objectives) for costs in (option.costs, best.costs))
        share = (option.replicas - 1) / option.replicas if option.replicas > 1 else 1.0
        ahead = any(option.costs[name] < best.costs[name] * (1 - EQUAL) for name in self.objectives)
        return cost < least * (1 - EQUAL) or (runner_up and (ahead or share * cost <= least * (1 + EQUAL)))

    def tried(self, option: Option, best: Finalist | None = None) -> Finalist:
        """*option* as simulated, with more replicas than estimated where it needs them, and fewer where it can.

        More than cost as much as the *best* so far cannot win, and are not tried.
        """
        first = self._simulated(option, self._affordable(option, best))
        found = first
        for _ in range(_MORE):
            if found.stands or found.point is None or monotonic() > self.until:
                break
            more = _grown(self._now(option, found), found.point)
            if best is not None and self._dearer(more, best):
                found = evolve(found, problem=f"{found.problem}; more GPUs cost more than those of the best")
                break
            found = self._simulated(option, more)
        while found.stands and found.replicas > 1 and not found.fewer and monotonic() < self.until and _roomy(found):
            less = self._simulated(option, evolve(option, replicas=found.replicas - 1))
            found = less if less.stands else evolve(found, fewer=True)
        return evolve(found, guessed=first.point if first.replicas == option.replicas else None)

    def _affordable(self, option: Option, best: Finalist | None) -> Option:
        """*option* with a replica less where its own cost more than the *best*."""
        if best is not None and option.replicas > 1 and self._dearer(option, best):
            return evolve(option, replicas=option.replicas - 1)
        return option

    def _dearer(self, option: Option, best: Finalist) -> bool:
        """Whether *option* surely costs more than the *best*, where costs are those of its GPUs."""
        name, *others = self.objectives  # of several, it may cost less by another one
        return (name in ("gpus", "usd") and not others
                and costs_of(self.question, option.engines, option.watts)[name] > best.costs[name] * (1 + EQUAL))

    def _now(self, option: Option, found: Finalist) -> Option:
        return evolve(option, settings=found.setup.settings, replicas=found.replicas)

    def _simulated(self, estimated: Option, tried: Option, least: int = 1) -> Finalist:
        try:
            setup = set_up(self.scenario, tried)
            requests = ceil(LIVES / 2 * self.question.requests * estimated.seconds)
            point = self.judge.decide(setup, tried.replicas, self.question.rate, least, requests)
        except WorkerLost:  # which is no answer
            raise
        except KsimError as error:
            return Finalist(estimated, SetUp(tried.name, tried.settings, None), tried.replicas, problem=str(error))
        problem = "" if keeps(point) else _missed(point)
        joules = point.first.get("joules_per_output_token", 0.0)  # of the replication that all have in common
        costs = costs_of(self.question, tried.engines, joules * self.question.tokens)
        return Finalist(estimated, setup, tried.replicas, point, costs, problem)


def _roomy(found: Finalist) -> bool:
    """Whether fewer replicas may do, too."""
    assert found.point, "what stands was simulated"
    return all(value < _ROOM * target.limit for target, (value, _) in found.point.values.items())


def _missed(point: RatePoint) -> str:
    """Which target *point* misses the most, or that the backlog grows."""
    if point.hopeless:
        return "the backlog grows"
    worst = max(point.excess, key=lambda target: point.excess[target][0])
    return f"misses {worst}"


def _grown(option: Option, point: RatePoint) -> Option:
    """*option* with one replica more, or of engines apart with one more of those that are too few."""
    if "pools" not in option.settings:
        return evolve(option, replicas=option.replicas + 1)
    worst = max(point.excess, key=lambda target: point.excess[target][0])
    return evolve(option, settings=grown(option.settings, _GROWS.get(worst.metric, "prefill")))

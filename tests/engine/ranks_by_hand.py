"""Stages of ranks of which everything is set by hand, and steps that are played on them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import simpy
from attrs import frozen

from ksim.cost.energy import FREE, Setting
from ksim.engine.rank_processes import Meeting, Rank
from ksim.engine.rank_stages import RankStage, StageShare, TensorGroup
from ksim.engine.ranks import LaunchTimes
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.events import RanksMet
from ksim.flow.steps import StepCost

#: Inputs and launches that nobody waits for.
AT_ONCE = LaunchTimes(0.0, 0.0)


@frozen
class Pace:
    """A clock that scales all steps alike."""

    scaling: ClockScaling = AT_BOOST

    def pace(self, step_cost: StepCost, start: float, setting: Setting) -> ClockScaling:
        return self.scaling


def never(ranks: int, moment: float) -> list[float]:
    """No host is late."""
    return [0.0] * ranks


@frozen
class NoCollectives:
    """Stands for a step timer of which only the collectives' links and all ranks' tokens are asked."""

    def everywhere(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> int:
        return 0

    def launches(self, batch: Batch, tokens_by_rank: Sequence[int] = ()) -> list[Any]:
        return []


@frozen
class Ranks:
    """A stage of engines with ranks of given slowness and pace, numbered one after another; `met` is what it noted."""

    env: simpy.Environment
    stage: RankStage
    met: list[RanksMet]

    @classmethod
    def of(cls, slowness: Sequence[Sequence[float]], paces: Sequence[ClockScaling] = (), number: int = 0,
           delays: Callable[[float], Sequence[float]] | None = None,
           env: simpy.Environment | None = None) -> "Ranks":
        """Ranks of each engine, one for each number in *slowness*; of the only one, the hosts may have *delays*."""
        env, met, lanes, first = env or simpy.Environment(), list[RanksMet](), {}, 0
        for member, own in enumerate(slowness):
            gpus = range(first, first + len(own))
            ranks = [Rank(env, [gpu], clock=Pace(paces[gpu]) if paces else None, speed=1.0 / slow)
                     for gpu, slow in zip(gpus, own, strict=True)]
            first += len(own)
            lanes[member] = TensorGroup(ranks, delays or partial(never, len(own)))
        return cls(env, RankStage(env, number, lanes, lambda collective: 0.0, met.append), met)

    def send(self, *step_costs: StepCost, times: Sequence[LaunchTimes] = ()) -> list[StageShare]:
        """Have each engine compute its step, without waiting for the end."""
        shares = [StageShare(member, step_cost, times[member] if times else AT_ONCE, FREE, 0, dict,
                        Meeting(self.env, len(self.stage.lanes[member].ranks), 0.0))
                  for member, step_cost in enumerate(step_costs)]
        for share in shares:
            self.stage.enter(share)
        return shares

    def play(self, *step_costs: StepCost, times: Sequence[LaunchTimes] = ()) -> float:
        """Have each engine compute its step; returns when the last rank is done."""
        shares = self.send(*step_costs, times=times)
        self.env.run()
        return max(share.done.end for share in shares)

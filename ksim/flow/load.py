"""What a step, or a part of it, asks of the clock: its seconds and joules without what they are made of."""

from typing import Any

import numpy as np
from attrs import define, fields

from ksim.flow.timeline import Paced


@define(eq=False)
class Load(Paced):
    """Numbers with the names and units of `Timeline`, of one step or part of it, or columns of several."""

    seconds: Any
    joules: Any
    clocked: Any
    core_joules: Any
    busy_joules: Any
    clocked_joules: Any
    launch_seconds: Any = 0.0

    @classmethod
    def of(cls, sums: Any, launch_seconds: Any) -> "Load":
        """That of what adds up seconds and joules, and takes so long to launch."""
        return cls(sums.seconds, sums.joules, sums.clocked, sums.core_joules, sums.busy_joules, sums.clocked_joules,
                   launch_seconds)

    def rows(self, steps: int) -> list["Load"]:
        """Each of so many *steps*, of which this has columns, or a number where all have the same."""
        columns = [column.tolist() if isinstance(column := getattr(self, each.name), np.ndarray) else [column] * steps
                   for each in fields(Load)]
        return [Load(*row) for row in zip(*columns, strict=True)]

    def after(self, seconds: Any) -> "Load":
        """This, and so many *seconds* before it that cost no energy."""
        return Load(self.seconds + seconds, self.joules, self.clocked, self.core_joules, self.busy_joules,
                    self.clocked_joules, self.launch_seconds)

    def plus(self, part: "Load", count: int) -> "Load":
        """This, and a *part* that runs so often."""
        return Load(self.seconds + count * part.seconds, self.joules + count * part.joules,
                    self.clocked + count * part.clocked, self.core_joules + count * part.core_joules,
                    self.busy_joules + count * part.busy_joules, self.clocked_joules + count * part.clocked_joules,
                    self.launch_seconds)

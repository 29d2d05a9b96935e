"""Governors: which power cap and clock a GPU keeps to in a step.

A governor is asked when a step is launched, stage by stage.  To add one, add a file with an attrs class that has

    setting(batch, step_cost, gpu) -> Setting
                                      the watts and the SM clock (Hz) at most for `batch`, which `gpu` computes as
                                      `step_cost` at the boost clock; None asks for nothing

What the scenario's ``[power]`` says holds whatever a governor answers.  One from elsewhere is named
``package.module:Class``; nothing need be inherited, and its fields are set by the scenario's options.
`tests/laws/test_governors.py` holds every one of this folder to: answers that a GPU can be set to, and the same ones
for the same question.
"""

from typing import Any, Protocol

from attrs import field, frozen

from ksim.cost.energy import FREE, Setting
from ksim.flow.batch import Batch
from ksim.flow.steps import StepCost
from ksim.foundation.errors import ConfigError
from ksim.specs.hardware import Gpu


class Governor(Protocol):
    def setting(self, batch: Batch, step_cost: StepCost, gpu: Gpu) -> Setting: ...


@frozen
class Supervised:
    """Asks a `governor`, if there is one, within what is `fixed`.

    Raises ConfigError for an answer that cannot be set.
    """

    gpu: Gpu
    fixed: Setting = FREE
    governor: Any = field(default=None, repr=False)

    def setting(self, batch: Batch, step_cost: StepCost) -> Setting:
        if self.governor is None:
            return self.fixed
        answer = self.governor.setting(batch, step_cost, self.gpu)
        if not isinstance(answer, Setting):
            raise ConfigError(f"governor {type(self.governor).__name__}", f"answers {answer!r}, which is no"
                                                                         f" ksim.cost.energy.Setting")
        checked(answer, self.gpu, f"governor {type(self.governor).__name__}")
        return self.fixed.within(answer)


def checked(setting: Setting, gpu: Gpu, where: str) -> Setting:
    """*setting*; raises ConfigError for a cap or a clock that *gpu* cannot be set to."""
    power, clocks = gpu.power, gpu.power.clocks
    if setting == FREE:
        return setting
    if clocks is None:
        raise ConfigError(where, f"{gpu.name} has no [power.clocks]; say in its file how its SMs do at lower clocks")
    if setting.cap is not None and not power.idle < setting.cap <= power.limit:
        raise ConfigError(f"{where}: cap", f"{setting.cap:g} W cannot be kept by {gpu.name}, which idles at"
                                           f" {power.idle:g} W and is limited to {power.limit:g} W; choose between"
                                           f" them")
    if setting.clock is not None and not clocks.least <= setting.clock <= clocks.boost:
        raise ConfigError(f"{where}: clock", f"{setting.clock / 1e6:g} MHz cannot be set on {gpu.name}, whose SMs run"
                                             f" at {clocks.least / 1e6:g} to {clocks.boost / 1e6:g} MHz")
    return setting

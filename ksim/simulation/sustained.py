"""A layer that goes on for long: at the clock that a cap, or the board's limit, leaves it."""

from attrs import evolve

from ksim.cost.clock import Clock, Setting
from ksim.engine.governors import checked
from ksim.flow.costs import ClockScaling
from ksim.flow.steps import PricedBlock, StepCost
from ksim.foundation.errors import ConfigError
from ksim.simulation.priced import Priced, Row
from ksim.specs.hardware import Gpu
from ksim.specs.power import PowerSettings


def sustained(priced: Priced, settings: PowerSettings) -> Priced:
    """*priced* without credit above the limit, under the cap and the clock of *settings*.

    One clock holds for all of its kernels, as within a step.  Raises ConfigError for what the GPU cannot be set to, for
    one whose clocks are not known, and for a governor, which chooses for batches.
    """
    if settings.governor is not None:
        raise ConfigError("power: governor", "chooses step by step, and a layer has none; give a cap or a clock")
    pace = _pace(priced, priced.gpu, checked(Setting(settings.cap, settings.clock), priced.gpu, "power"))
    return evolve(priced, rows=tuple(_paced(row, pace, priced.gpu.power.idle) for row in priced.rows))


def _pace(priced: Priced, gpu: Gpu, setting: Setting) -> ClockScaling:
    if gpu.power.clocks is None:
        raise ConfigError("power", f"{gpu.name} has no [power.clocks]; say in its file how its SMs do at lower clocks")
    timeline = StepCost.of([PricedBlock.of([row.span.replaced(seconds=row.exposed / row.runs)], row.runs)
                            for row in priced.rows])
    return Clock.tired(gpu.power, gpu.power.clocks).pace(timeline, 0.0, setting)


def _paced(row: Row, pace: ClockScaling, idle: float) -> Row:
    """*row* at *pace*; what it hides of its time grows with it."""
    longer, costs = pace.time if row.span.is_compute_bound else 1.0, row.span.costs
    span = row.span.replaced(seconds=longer * costs.seconds, below=longer * costs.below, above=longer * costs.above,
                             joules=costs.joules_at(pace))
    span = evolve(span, roofline_ratio=longer * span.roofline_ratio)
    hidden = longer * row.hidden
    return evolve(row, span=span, hidden=hidden,
                  joules=row.runs * span.joules + idle * (row.runs * span.seconds - hidden))

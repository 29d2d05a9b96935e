"""A user's own layer: from its equations to what it costs on a GPU."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from attrs import evolve, field, frozen

from ksim.compute.graph import BatchDependent, Collective, Op
from ksim.compute.kernels import Kernel
from ksim.compute.notation.splits import GROUPS, LayerOperation, lower
from ksim.cost.clock import Clock, Setting
from ksim.cost.overlap import Overlap, pair, side_by_side
from ksim.cost.plan import PricedLaunch
from ksim.cost.pricer import Pricer
from ksim.engine.governors import checked
from ksim.flow.costs import ClockScaling
from ksim.flow.kernels import KernelCost
from ksim.flow.steps import PricedBlock, StepCost
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.foundation.plugins import plugin
from ksim.report.formats import html_block, html_table
from ksim.report.tables import Table
from ksim.simulation.hardware import gpu_of, network_of, system_of
from ksim.simulation.layer_cost import LaunchCost, LayerCost
from ksim.simulation.plugins import oracle_choice
from ksim.simulation.scenario import COLLECTIVES
from ksim.specs.power import PowerSettings


def _operations(given: Iterable[LayerOperation]) -> tuple[LayerOperation, ...]:
    operations = tuple(given)
    for operation in operations:
        if not hasattr(operation, "lower"):
            raise ConfigError("operations", f"expected what op, attend, pointwise and the like return, not a"
                                            f" {type(operation).__name__}; lists go in as [*attention, *mlp]")
    return operations


def _sizes(written: Mapping[str, int]) -> Mapping[str, int]:
    for index, size in written.items():
        if len(index) != 1 or not index.isalpha():
            raise ConfigError("sizes", f"{index!r} is no index; each is one letter")
        _whole("sizes", f"index {index!r}", size)
    return dict(written)


def _whole(where: str, what: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(where, f"{what} is {value!r}; expected a whole number of 1 or more")


@frozen
class Layer:
    """`operations` in the order in which a rank launches them, over indices of these `sizes`.

    The sizes are those of the whole layer, before it is split over ranks.  Tables show the `name`.
    """

    operations: Sequence[LayerOperation] = field(converter=_operations)
    sizes: Mapping[str, int] = field(converter=_sizes)
    name: str = "layer"

    def tasks(self, **ranks: int) -> list[Op]:
        """What one rank launches; *ranks* gives the sizes of the groups (tensor, context, expert), 1 by default."""
        return [task for tasks in self._lowered(_ranks(ranks)) for task in tasks]

    def with_sizes(self, **sizes: int) -> "Layer":
        """The same layer with other sizes, such as one new token (s=1) for each of 64 sequences (b=64)."""
        return evolve(self, sizes={**self.sizes, **sizes})

    def on(
        self, gpu: str, *, system: str | None = None, nodes: int | None = None, oracle: str | None = None,
        power: PowerSettings | None = None, **ranks: int
    ) -> LayerCost:
        """Price the layer on *gpu*, in its usual system or another; the groups' *ranks* multiply to the number of GPUs.

        The layer runs once, at the boost clock.  With *power*, it runs for a long time under that cap and clock, or
        under the board's limit if neither is set.  Raises UnknownName for a name that the catalogue lacks, DoesNotFit
        for more GPUs than the system has, and ConfigError for a layer that cannot be split or priced like this, and for
        *power* that the GPU cannot be set to.
        """
        sizes = _ranks(ranks)
        server, gpus = system_of(gpu, system, nodes), prod(sizes.values())
        if gpus > server.gpus:
            raise DoesNotFit(f"{_spelled(sizes)} are {gpus} GPUs, and {server.name} has {server.gpus}; set nodes to"
                             f" {-(-gpus // server.gpus_per_node)} or more")
        chosen = plugin("oracles", oracle_choice(Choice(oracle) if oracle else None, server.gpu))
        pricer = Pricer(gpu_of(server.gpu), chosen, network_of(server, map(Choice, COLLECTIVES)), _groups(sizes))
        cost = LayerCost(self.name, pricer.gpu, gpus, tuple(self._launches(pricer, sizes)))
        return cost if power is None else _sustained(cost, power)

    def _repr_html_(self) -> str:
        sizes = ", ".join(f"{index} = {size:,}" for index, size in self.sizes.items())
        rows = [(operation.label, type(operation).__name__,
                 str(getattr(operation, "equation", getattr(operation, "tensor", ""))),
                 ", ".join(f"{index}: {group}" for index, group in getattr(operation, "parallel", ())))
                for operation in self.operations]
        return html_block(self.name, sizes, html_table(Table.of("operation", "kind", "equation", "split", rows=rows)))

    def _lowered(self, ranks: Mapping[str, int]) -> list[Sequence[Op]]:
        """The tasks of each operation."""
        return [lower(operation, self.sizes, ranks) for operation in self.operations]

    def _launches(self, pricer: Pricer, ranks: Mapping[str, int]) -> Iterator[LaunchCost]:
        """The cost of each distinct launch of an operation."""
        lowered = self._lowered(ranks)
        launches = list(dict.fromkeys(_labelled(task) for tasks in lowered for task in tasks))
        costs = dict(zip(launches, pricer.kernels(launches), strict=True))
        for operation, tasks in zip(self.operations, lowered, strict=True):
            priced = [(PricedLaunch(kernel, costs[label, kernel]), _hidden(task, costs))
                      for task in tasks for label, kernel in [_labelled(task)]]
            if (stages := getattr(operation, "overlap_stage", 1)) > 1:
                priced = _overlapped(pricer, tasks, priced, Overlap(stages, operation.overlap_sms))  # type: ignore[attr-defined]
            for launch in dict.fromkeys(launch for launch, _ in priced):
                runs = [hidden for other, hidden in priced if other == launch]
                yield _launch_cost(pricer, launch, len(runs), sum(runs))


#: A launch, and how many of its seconds pass while another kernel keeps the GPU busy.
Timed = tuple[PricedLaunch, float]
#: A label and a kernel.
Labelled = tuple[str, Kernel | Collective]


def _overlapped(pricer: Pricer, tasks: Sequence[Op], priced: list[Timed], overlap: Overlap) -> list[Timed]:
    """*priced* with the last product of *tasks* in pieces; each runs beside the collective that sums the piece before.

    Raises ConfigError where no such collective follows.
    """
    *_, product, message = tasks if len(tasks) > 1 else (*tasks, *tasks)
    summed = pair(*_labelled(product), *_labelled(message))
    if summed is None:
        raise ConfigError(product.label, f"overlap_stage = {overlap.stages} has nothing to overlap: no sum over ranks"
                                         f" follows; split a contracted index, or leave it at 1")
    return [*priced[:-2], *((launch, launch.cost.seconds if hidden else 0.0)
                            for launch, hidden in side_by_side(pricer, summed, overlap))]


def _labelled(task: Op) -> Labelled:
    """The label and the kernel of a launch, whose shape does not depend on a batch."""
    assert not isinstance(task.kernel, BatchDependent), "sizes decide the shapes of a layer's kernels"
    return task.label, task.kernel


def _hidden(task: Op, costs: Mapping[Labelled, KernelCost]) -> float:
    """Seconds of *task* that pass while the kernel beside it keeps the GPU busy."""
    if task.beside is None:
        return 0.0
    return float(min(costs[_labelled(task)].seconds, costs[_labelled(task.beside)].seconds))


def _launch_cost(pricer: Pricer, launch: PricedLaunch, runs: int, hidden: float) -> LaunchCost:
    kernel, cost = launch
    sent = runs * pricer.sent(kernel) if isinstance(kernel, Collective) else 0.0
    idle = pricer.gpu.power.idle * (runs * cost.seconds - hidden)
    return LaunchCost(cost, runs, sent, hidden, runs * cost.joules + idle)


def _ranks(given: Mapping[str, int]) -> dict[str, int]:
    """How many ranks each group has."""
    for name, ranks in given.items():
        if name not in GROUPS:
            raise UnknownName("group of ranks", name, GROUPS)
        _whole("ranks", name, ranks)
    return {name: given.get(name, 1) for name in GROUPS}


def _spelled(ranks: Mapping[str, int]) -> str:
    return " x ".join(f"{count} {name}" for name, count in ranks.items() if count > 1)


def _groups(ranks: Mapping[str, int]) -> dict[str, range]:
    """The GPUs of each group that the first GPU belongs to; the ranks of the first group are neighbours."""
    groups, step = {}, 1
    for name, count in ranks.items():
        groups[name] = range(0, step * count, step)
        step *= count
    return groups


def _sustained(cost: LayerCost, settings: PowerSettings) -> LayerCost:
    """*cost* once the GPU has spent its credit above the power limit, under the cap and clock of *settings*.

    All kernels run at one clock, as those of a step do.  Raises ConfigError for settings that the GPU cannot have, for
    a GPU whose clocks are not known, and for a governor, which chooses by batches.
    """
    gpu = cost.gpu
    if settings.governor is not None:
        raise ConfigError("power: governor", "chooses step by step, and a layer has none; give a cap or a clock")
    setting = checked(Setting(settings.cap, settings.clock), gpu, "power")
    if gpu.power.clocks is None:
        raise ConfigError("power", f"{gpu.name} has no [power.clocks]; say in its file how its SMs do at lower clocks")
    step = StepCost.of([PricedBlock.of([row.cost.replaced(seconds=row.exposed / row.runs)], row.runs)
                        for row in cost.rows])
    scaling = Clock.tired(gpu.power, gpu.power.clocks).pace(step, 0.0, setting)
    return evolve(cost, rows=tuple(_scaled(row, scaling, gpu.power.idle) for row in cost.rows))


def _scaled(row: LaunchCost, scaling: ClockScaling, idle: float) -> LaunchCost:
    """*row* at the clock of *scaling*; its hidden seconds grow with the others."""
    longer, costs = scaling.time if row.cost.is_compute_bound else 1.0, row.cost.costs
    cost = evolve(row.cost.replaced(seconds=longer * costs.seconds, below=longer * costs.below,
                                    above=longer * costs.above, joules=costs.joules_at(scaling)),
                  roofline_ratio=longer * row.cost.roofline_ratio)
    hidden = longer * row.hidden
    return evolve(row, cost=cost, hidden=hidden,
                  joules=row.runs * cost.joules + idle * (row.runs * cost.seconds - hidden))

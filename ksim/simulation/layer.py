"""A layer of a user's own, from its equations to what it takes on a GPU."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from attrs import evolve, field, frozen

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.notation import Operation, Task, lower
from ksim.compute.notation.splits import GROUPS
from ksim.compute.sizes import Sizes
from ksim.cost.overlap import Overlap, pair, side_by_side
from ksim.cost.parts import PricedLaunch
from ksim.cost.pricer import Pricer
from ksim.flow.kernels import KernelCost
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.report import html
from ksim.simulation.lookup import gpu_of, network_of, oracle_choice, plugin, system_of
from ksim.simulation.priced import Priced, Row
from ksim.simulation.scenario import COLLECTIVES
from ksim.simulation.sustained import sustained
from ksim.specs.power import PowerSettings


def _operations(given: Iterable[Operation]) -> tuple[Operation, ...]:
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

    Sizes are of the whole layer, before anything is split.  The `name` is for tables.
    """

    operations: Sequence[Operation] = field(converter=_operations)
    sizes: Mapping[str, int] = field(converter=_sizes)
    name: str = "layer"

    def tasks(self, **ranks: int) -> list[Task]:
        """What one rank launches where groups (tensor, context, expert) have so many ranks, by default 1."""
        return [task for tasks in self._lowered(_ranks(ranks)) for task in tasks]

    def with_sizes(self, **sizes: int) -> "Layer":
        """The same with other sizes, such as one new token (s=1) for each of many sequences (b=64)."""
        return evolve(self, sizes={**self.sizes, **sizes})

    def on(
        self, gpu: str, *, system: str | None = None, nodes: int | None = None, oracle: str | None = None,
        power: PowerSettings | None = None, **ranks: int
    ) -> Priced:
        """Price the layer on as many GPUs as the groups' *ranks* multiply to, in their usual system or another.

        At the boost clock, or, where *power* is given, as it goes on for long under its cap and clock, or under the
        board's limit alone.  Raises UnknownName for what the catalogue lacks, DoesNotFit for more GPUs than the system
        has, and ConfigError for what cannot be split so, is not priced or cannot be set.
        """
        of = _ranks(ranks)
        found, gpus = system_of(gpu, system, nodes), prod(of.values())
        if gpus > found.gpus:
            raise DoesNotFit(f"{_told(of)} are {gpus} GPUs, and {found.name} has {found.gpus}; set nodes to"
                             f" {-(-gpus // found.gpus_per_node)} or more")
        chosen = plugin("oracles", oracle_choice(Choice(oracle) if oracle else None, found.gpu))
        pricer = Pricer(gpu_of(found.gpu), chosen, network_of(found, map(Choice, COLLECTIVES)), _groups(of))
        priced = Priced(self.name, pricer.gpu, gpus, tuple(self._rows(pricer, of)))
        return priced if power is None else sustained(priced, power)

    def _repr_html_(self) -> str:
        sizes = ", ".join(f"{index} = {size:,}" for index, size in self.sizes.items())
        rows = [(each.label, type(each).__name__, str(getattr(each, "equation", getattr(each, "tensor", ""))),
                 ", ".join(f"{index}: {group}" for index, group in getattr(each, "parallel", ())))
                for each in self.operations]
        return html.block(self.name, sizes, html.table(("operation", "kind", "equation", "split"), rows))

    def _lowered(self, ranks: Mapping[str, int]) -> list[Sequence[Task]]:
        """The tasks of each operation."""
        return [lower(operation, Sizes(self.sizes), ranks) for operation in self.operations]

    def _rows(self, pricer: Pricer, ranks: Mapping[str, int]) -> Iterator[Row]:
        """A row for each distinct launch of an operation."""
        lowered = self._lowered(ranks)
        launches = list(dict.fromkeys((task.label, task.kernel) for tasks in lowered for task in tasks))
        costs = dict(zip(launches, pricer.kernels(launches), strict=True))
        for operation, tasks in zip(self.operations, lowered, strict=True):
            priced = [(PricedLaunch(task.kernel, costs[task.label, task.kernel]), _hidden(task, costs))
                      for task in tasks]
            if (stages := getattr(operation, "overlap_stage", 1)) > 1:
                priced = _overlapped(pricer, tasks, priced, Overlap(stages, operation.overlap_sms))  # type: ignore[attr-defined]
            for launch in dict.fromkeys(launch for launch, _ in priced):
                runs = [hidden for other, hidden in priced if other == launch]
                yield _row(pricer, launch, len(runs), sum(runs))


#: A launch, and how many of its seconds pass while another keeps the GPU busy.
Timed = tuple[PricedLaunch, float]


def _overlapped(pricer: Pricer, tasks: Sequence[Task], priced: list[Timed], overlap: Overlap) -> list[Timed]:
    """*priced* with the last product of *tasks* in pieces, each beside the collective that adds up the one before.

    Raises ConfigError where no such collective follows.
    """
    *_, product, message = tasks if len(tasks) > 1 else (*tasks, *tasks)
    summed = pair(product.label, product.kernel, message.label, message.kernel)
    if summed is None:
        raise ConfigError(product.label, f"overlap_stage = {overlap.stages} has nothing to overlap: no sum over ranks"
                                         f" follows; split a contracted index, or leave it at 1")
    return [*priced[:-2], *((launch, launch.cost.seconds if hidden else 0.0)
                            for launch, hidden in side_by_side(pricer, summed, overlap))]


def _hidden(task: Task, costs: Mapping[tuple[str, Kernel | Collective], KernelCost]) -> float:
    """Seconds of *task* that pass while what it runs beside keeps the GPU busy."""
    if task.beside is None:
        return 0.0
    return float(min(costs[task.label, task.kernel].seconds, costs[task.beside.label, task.beside.kernel].seconds))


def _row(pricer: Pricer, launch: PricedLaunch, runs: int, hidden: float) -> Row:
    kernel, cost = launch
    sent = runs * pricer.sent(kernel) if isinstance(kernel, Collective) else 0.0
    idle = pricer.gpu.power.idle * (runs * cost.seconds - hidden)
    return Row(cost, runs, sent, hidden, runs * cost.joules + idle)


def _ranks(given: Mapping[str, int]) -> dict[str, int]:
    """How many ranks each group has."""
    for name, ranks in given.items():
        if name not in GROUPS:
            raise UnknownName("group of ranks", name, GROUPS)
        _whole("ranks", name, ranks)
    return {name: given.get(name, 1) for name in GROUPS}


def _told(ranks: Mapping[str, int]) -> str:
    return " x ".join(f"{count} {name}" for name, count in ranks.items() if count > 1)


def _groups(ranks: Mapping[str, int]) -> dict[str, range]:
    """The GPUs of each group that the first GPU is in; those of the first kind are neighbours."""
    groups, step = {}, 1
    for name, count in ranks.items():
        groups[name] = range(0, step * count, step)
        step *= count
    return groups

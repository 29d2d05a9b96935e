"""A user's own layer: from its equations to its kernels and what they cost on a GPU, beside another layer's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from attrs import evolve, field, frozen

from ksim.compute.graph import BatchDependent, Collective, Op
from ksim.compute.kernels import Kernel
from ksim.compute.notation.communicate import GROUPS, LayerOperation, lower
from ksim.cost.energy import Clock, Setting
from ksim.cost.pricer import Overlap, PricedLaunch, Pricer, pair, side_by_side
from ksim.engine.governors import checked
from ksim.flow.costs import ClockScaling
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.scenario.hardware import gpu_of, network_of, oracle_choice, system_of
from ksim.scenario.scenario import COLLECTIVES
from ksim.specs.hardware import Gpu, PowerSettings
from ksim.views.tables import Table, as_text, notebook
from ksim.views.wording import UNLIMITED, measure, number, percent

_COLUMNS = ("label", "kernel", "shape", ">runs", ">GFLOP", ">MB", ">sent MB", ">us", ">mJ", "bound", "source")


@frozen
class LaunchCost:
    """A kernel or collective that one rank launches `runs` times; the figures are sums over these runs.

    `cost` is that of one run.  `sent` are the bytes that go to other ranks, and `hidden` the seconds that pass while
    another kernel runs.  `joules` are those of one GPU, with its idle power for the seconds that are not hidden.
    """

    cost: KernelCost = field(repr=False)
    runs: int
    sent: float
    hidden: float
    joules: float

    @property
    def label(self) -> str:
        return self.cost.label

    @property
    def kernel(self) -> str:
        """The family of the kernel, or the kind of collective."""
        return self.cost.family

    @property
    def shape(self) -> str:
        return str(self.cost.shape)

    @property
    def bound(self) -> str:
        return self.cost.bound

    @property
    def seconds(self) -> float:
        return self.runs * self.cost.seconds

    @property
    def exposed(self) -> float:
        """Seconds by which the layer would be faster without this launch."""
        return self.seconds - self.hidden

    @property
    def flops(self) -> float:
        return self.runs * self.cost.flops

    @property
    def bytes(self) -> float:
        return self.runs * self.cost.bytes

    @property
    def cells(self) -> tuple[str, ...]:
        hidden = f" ({number(1e6 * self.hidden)} hidden)" if self.hidden else ""
        return (self.label, self.kernel, self.shape, str(self.runs), *_counts(self.flops, self.bytes, self.sent),
                number(1e6 * self.seconds), number(1e3 * self.joules), self.bound + hidden, self.cost.source)


def _counts(flops: float, moved: float, sent: float) -> tuple[str, ...]:
    return tuple(number(count / unit) if count else "" for count, unit in ((flops, 1e9), (moved, 1e6), (sent, 1e6)))


@frozen
class LayerCost:
    """What a layer costs on `gpus` equal GPUs; totals are those of one GPU, except `all_joules` and `all_flops`."""

    name: str
    gpu: Gpu = field(repr=False)
    gpus: int
    rows: tuple[LaunchCost, ...]

    @property
    def title(self) -> str:
        return f"{self.name} on {self.gpus} x {self.gpu.name}"

    @property
    def seconds(self) -> float:
        return sum(row.exposed for row in self.rows)

    @property
    def joules(self) -> float:
        return sum(row.joules for row in self.rows)

    @property
    def all_joules(self) -> float:
        return self.gpus * self.joules

    @property
    def flops(self) -> float:
        return sum(row.flops for row in self.rows)

    @property
    def all_flops(self) -> float:
        return self.gpus * self.flops

    @property
    def bytes(self) -> float:
        """Traffic to and from device memory."""
        return sum(row.bytes for row in self.rows)

    @property
    def sent(self) -> float:
        return sum(row.sent for row in self.rows)

    @property
    def watts(self) -> float:
        """Mean power of one GPU; 0 where nothing is launched."""
        return self.joules / self.seconds if self.seconds else 0.0

    def compare(self, other: "LayerCost") -> "Comparison":
        return Comparison(self, other)

    def _repr_html_(self) -> str:
        return notebook(self.title, "figures of one GPU", self._table, self._summary)

    def __str__(self) -> str:
        return f"{self.title}, figures of one GPU\n{as_text(self._table, UNLIMITED).strip()}\n\n{self._summary}"

    @property
    def _table(self) -> Table:
        table = Table.of(*_COLUMNS, rows=(row.cells for row in self.rows))
        table.add_section()
        table.add_row(*self._totals)
        return table

    @property
    def _totals(self) -> tuple[str, ...]:
        return ("total", "", "", "", *_counts(self.flops, self.bytes, self.sent), number(1e6 * self.seconds),
                number(1e3 * self.joules), "", "")

    @property
    def _summary(self) -> str:
        outside = sum(row.exposed for row in self.rows if row.cost.is_extrapolated)
        hot = f", above its limit of {number(self.gpu.power.limit)} W: if it goes on, clocks fall (power=...)"
        return (f"{measure(self.seconds, 's')}; {measure(self.joules, 'J')} a GPU, {measure(self.all_joules, 'J')} in"
                f" all; {measure(self.flops, 'FLOP')} a GPU, {measure(self.all_flops, 'FLOP')} in all;"
                f" {number(self.watts)} W a GPU" + (hot if self.watts > self.gpu.power.limit else "")
                + (f"; {percent(outside / self.seconds)} of the time extrapolated" if outside else ""))


#: What comparisons show, by unit: the attribute of a row, the attribute of the whole layer, and the scale.
_MEASURES = {"us": ("exposed", "seconds", 1e6), "mJ": ("joules", "joules", 1e3), "MB": ("bytes", "bytes", 1e-6),
             "sent MB": ("sent", "sent", 1e-6)}


@frozen
class Comparison:
    """Two layers, label by label; a ratio divides the second by the first."""

    first: LayerCost
    second: LayerCost

    @property
    def ratios(self) -> Mapping[str, float]:
        """Ratios of seconds, joules, FLOP, bytes and bytes sent, without those whose divisor is 0."""
        return {name: getattr(self.second, name) / whole for name in ("seconds", "joules", "flops", "bytes", "sent")
                if (whole := getattr(self.first, name))}

    def _repr_html_(self) -> str:
        table, ratios = self._parts()
        return notebook(f"A: {self.first.title}; B: {self.second.title}", "figures of one GPU", table,
                          ratios)

    def __str__(self) -> str:
        table, ratios = self._parts()
        return (f"A: {self.first.title}\nB: {self.second.title}; figures of one GPU\n"
                f"{as_text(table, UNLIMITED).strip()}\n\n{ratios}")

    def _parts(self) -> tuple[Table, str]:
        """The table, and the ratios as a line."""
        both = (self.first, self.second)
        rows = [(label, *(_sum(cost, label, name, scale) for name, _, scale in _MEASURES.values() for cost in both))
                for label in self._labels()]
        totals = [number(scale * getattr(cost, whole)) for _, whole, scale in _MEASURES.values() for cost in both]
        table = Table.of("label", *(f">{unit} {letter}" for unit in _MEASURES for letter in "AB"), rows=rows)
        table.add_section()
        table.add_row("total", *totals)
        return table, f"B over A: {', '.join(f'{name} {ratio:.3f}' for name, ratio in self.ratios.items())}"

    def _labels(self) -> list[str]:
        """All labels in the order of the first layer; those of the second alone come before the next that both have."""
        labels = list(dict.fromkeys(row.label for row in self.first.rows))
        others = list(dict.fromkeys(row.label for row in self.second.rows))
        index = 0
        for label in others:
            if label in labels:
                index = max(index, labels.index(label) + 1)
                continue
            while index < len(labels) and labels[index] not in others:
                index += 1
            labels.insert(index, label)
            index += 1
        return labels


def _sum(cost: LayerCost, label: str, name: str, scale: float) -> str:
    """The sum over the rows called *label*, as text; "" for 0."""
    total = scale * sum(getattr(row, name) for row in cost.rows if row.label == label)
    return number(total) if total else ""


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
        priced = gpu_of(server.gpu)
        if power is not None:
            priced = evolve(priced, power=priced.power.with_data(power.data))
        pricer = Pricer(priced, chosen, network_of(server, map(Choice, COLLECTIVES)), _groups(sizes))
        cost = LayerCost(self.name, pricer.gpu, gpus, tuple(self._launches(pricer, sizes)))
        return cost if power is None else _sustained(cost, power)

    def _repr_html_(self) -> str:
        sizes = ", ".join(f"{index} = {size:,}" for index, size in self.sizes.items())
        rows = [(operation.label, type(operation).__name__,
                 str(getattr(operation, "equation", getattr(operation, "tensor", ""))),
                 ", ".join(f"{index}: {group}" for index, group in getattr(operation, "parallel", ())))
                for operation in self.operations]
        return notebook(self.name, sizes, Table.of("operation", "kind", "equation", "split", rows=rows))

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

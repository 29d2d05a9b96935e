"""What a layer costs on a GPU, kernel by kernel, and how the costs of two layers compare."""

from collections.abc import Mapping

from attrs import field, frozen

from ksim.flow.kernels import KernelCost
from ksim.report.formats import html_block, html_table
from ksim.report.tables import Table, as_text
from ksim.report.wording import UNLIMITED, measure, number, percent
from ksim.specs.hardware import Gpu

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
        return html_block(self.title, "figures of one GPU", html_table(self._table), self._summary)

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
        return html_block(f"A: {self.first.title}; B: {self.second.title}", "figures of one GPU", html_table(table),
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
        place = 0
        for label in others:
            if label in labels:
                place = max(place, labels.index(label) + 1)
                continue
            while place < len(labels) and labels[place] not in others:
                place += 1
            labels.insert(place, label)
            place += 1
        return labels


def _sum(cost: LayerCost, label: str, name: str, scale: float) -> str:
    """The sum over the rows called *label*, as text; "" for 0."""
    total = scale * sum(getattr(row, name) for row in cost.rows if row.label == label)
    return number(total) if total else ""

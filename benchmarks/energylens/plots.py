"""Figures of docs/evidence/energylens.md."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, MultipleLocator, NullLocator

from benchmarks.energylens.batches import BATCHES, TENSORS, BatchPoint, Phases, Survey
from benchmarks.energylens.techniques import NONE, WAYS, Overlaps, Saving
from ksim.views.charts import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, RED, decades, plain
from ksim.views.drawing import beside, canvas, grid_of

DASHES = (0, (4, 3))
PLAIN = FuncFormatter(lambda value, _: plain(value))
COLOURS = dict(zip(TENSORS, (BLUE, ORANGE, GREEN), strict=True))
_MARKS = dict(zip(WAYS, "osD^", strict=True))
#: From the smallest batch to the largest.
_SHADES = ("#c9d8ec", "#a9c1e0", "#88a9d3", "#6690c5", "#4677b5", "#2f5c96", "#1d416f")


def batches_figure(survey: Survey, title: str, length: int) -> Figure:
    """Energy per token of prompts and of decodes, and what decodes draw, over the batch."""
    figure = canvas(11.5, 4.3, title, f"A100 SXM 80 GB, BF16, {length:,} tokens a request; what fits in memory")
    prefill, decode, watts = grid_of(figure, 1, 3)
    top = max(point.joules_per_token for point in survey.decodes if point.length == length)
    for axes, points, phase in ((prefill, survey.prefills, "prompts"), (decode, survey.decodes, "decodes")):
        _by_batch(axes, f"Energy of {phase}", "joules per token")
        _lines(axes, [(p.gpus, p.batch, p.joules_per_token) for p in points if p.length == length])
        axes.set_yscale("log")
        axes.set_ylim(0.1, 2 * top)
        axes.yaxis.set_major_formatter(PLAIN)
    _by_batch(watts, "Power of decodes", "watts of one GPU")
    _lines(watts, [(p.gpus, p.batch, p.watts) for p in survey.decodes if p.length == length])
    watts.set_ylim(0, 1.08 * survey.limit)
    watts.axhline(survey.limit, color=RED, linewidth=1.2, linestyle=DASHES)
    beside(watts, f"limit {survey.limit:.0f} W", RED)
    prefill.legend(loc="upper right")
    return figure


def _by_batch(axes: Axes, title: str, what: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("requests in the batch")
    axes.set_ylabel(what)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(BATCHES))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(PLAIN)


def _lines(axes: Axes, marks: Sequence[tuple[int, int, float]]) -> None:
    """A line for each number of GPUs over (GPUs, batch, value)."""
    for gpus, colour in COLOURS.items():
        own = [(batch, value) for each, batch, value in marks if each == gpus]
        axes.plot(*zip(*own, strict=True), "o-", color=colour, markersize=4, label=f"{gpus} GPUs")


def _percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def shares_figure(points: Mapping[str, Sequence[BatchPoint]], paper: float) -> Figure:
    """How much of the time and of the energy all-reduces take, for kinds of steps on 2, 4 and 8 GPUs."""
    figure = canvas(9.5, 4.0, "All-reduces of Llama 3.1 70B", "their share of a step; dashed, EnergyLens' share of the"
                                                             " energy on 8 GPUs")
    for axes, (title, steps) in zip(grid_of(figure, 1, len(points)), points.items(), strict=True):
        axes.set_title(title)
        places = range(len(steps))
        for shift, colour, name in ((-0.2, GREY, "time"), (0.2, PURPLE, "energy")):
            values = [point.exchanging if name == "time" else point.exchanged for point in steps]
            bars = axes.bar([place + shift for place in places], values, 0.36, color=colour, label=name)
            axes.bar_label(bars, [f"{100 * value:.0f} %" for value in values], padding=2, fontsize=8.5, color=INK)
        axes.axhline(paper, color=RED, linewidth=1.2, linestyle=DASHES)
        axes.set_xticks(list(places), [f"{point.gpus} GPUs" for point in steps])
        axes.grid(visible=False, axis="x")
        _percent(axes)
        axes.set_ylim(0, 0.3)
        axes.legend(loc="upper left")
    return figure


def fusion_figure(savings: Mapping[str, Sequence[Saving]], ours: Phases, paper: Phases) -> Figure:
    """What fusion saves, over the length, a line for each batch."""
    figure = canvas(9.5, 4.3, "Energy that fusion saves", "a layer of Llama 3.1 70B on 8 A100; dashed, the mean of"
                                                         " EnergyLens; dark line, ours")
    pairs = ((ours.prefill, paper.prefill), (ours.decode, paper.decode))
    for axes, (phase, every), (mean, theirs) in zip(grid_of(figure, 1, 2), savings.items(), pairs, strict=True):
        axes.set_title(phase)
        axes.set_xlabel("tokens of a request" if phase == "Prompts" else "tokens in each request's cache")
        for batch, shade in zip(BATCHES, _SHADES, strict=True):
            own = [saving for saving in every if saving.batch == batch]
            axes.plot([s.length for s in own], [s.share for s in own], color=shade, linewidth=1.4, label=str(batch))
        axes.axhline(mean, color=INK, linewidth=1.4)
        axes.axhline(theirs, color=RED, linewidth=1.2, linestyle=DASHES)
        beside(axes, f"mean {100 * mean:.1f} %; EnergyLens {100 * theirs:.1f} %")
        _percent(axes)
        axes.set_ylim(0, 0.1)
        axes.xaxis.set_major_locator(MultipleLocator(2048))
        axes.xaxis.set_major_formatter(PLAIN)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), title="requests")
    return figure


def overlap_figure(overlaps: Overlaps) -> Figure:
    """Energy over latency of every way to overlap; the front is a line."""
    figure = canvas(10, 4.8, "Overlap of products with their all-reduces",
                    "1 to 16 prompts of 4,096 tokens, Llama 3.1 70B on A100; line: what nothing beats; 8 GPUs with 1 SM"
                    " are far above")
    (axes,) = grid_of(figure, 1, 1)
    for point in overlaps.points:
        colour = COLOURS[point.gpus]
        axes.plot(1e3 * point.seconds, point.joules_per_token, _MARKS[point.variant], color=colour, markersize=6.5,
                  markerfacecolor=colour if point.variant == NONE else "white", zorder=4 - (point.variant == NONE))
    best = overlaps.front
    axes.plot([1e3 * p.seconds for p in best], [p.joules_per_token for p in best], color=FAINT, linewidth=1.2, zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(300, 25000)
    axes.xaxis.set_major_locator(FixedLocator(decades(300, 25000, 8)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(PLAIN)
    axes.set_ylim(0.22, 0.31)
    axes.set_xlabel("milliseconds until all prompts are done")
    axes.set_ylabel("joules per token")
    _overlap_legend(axes)
    return figure


def _overlap_legend(axes: Axes) -> None:
    gpus = [Line2D([], [], color=colour, marker="s", linestyle="", label=f"{count} GPUs")
            for count, colour in COLOURS.items()]
    ways = [Line2D([], [], color=INK, marker=mark, linestyle="", label=way,
                   markerfacecolor=INK if way == NONE else "white") for way, mark in _MARKS.items()]
    axes.legend(handles=[*gpus, *ways], loc="upper left", bbox_to_anchor=(1.0, 1.0))

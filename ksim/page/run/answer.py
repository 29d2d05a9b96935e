"""The answer of a run: a sentence, and the few numbers that matter, with their intervals."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ksim.page.markup import Markup, element, told
from ksim.page.reading import Run
from ksim.report.wording import DOWN, UP, endings, number, percent

Summary = Mapping[str, Any]


def lead(run: Run) -> Iterator[Markup]:
    """The sentence, then a card for each subject."""
    yield element("p", *_sentence(run), cls="lead")
    cards = [*_latencies(run.summary), *_throughput(run.summary), *_targets(run), *_energy(run.summary),
             *_cost(run.summary)]
    yield element("dl", *cards, cls="cards")
    if run.summary["completed"] and run.summary.get("median_ttft_low_ms") is None:
        yield element("p", "The oracle of this run, or its streaming, gives no intervals.", cls="note")


def shown(summary: Summary, key: str, show: Callable[[Any], str] = number) -> Markup:
    """The number of the summary at *key*."""
    return told(summary.get(key), show(summary.get(key)), key)


def _sentence(run: Run) -> Iterator[Any]:
    summary = run.summary
    counts = ", ".join(f"{count:,} {word}" for count, word in endings(summary))
    if not summary["completed"]:
        yield f"No request completed ({counts}), so this run has no latencies. The insights say why."
        return
    yield f"{counts} in "
    yield shown(summary, "duration")
    yield " s: "
    yield shown(summary, "request_throughput")
    yield " requests/s and "
    yield shown(summary, "output_throughput")
    yield " output tokens/s."
    yield from _verdict(run)


def _verdict(run: Run) -> Iterator[Any]:
    """Whether the run met its targets, and whether its latencies mean anything."""
    if run.targets:
        yield " "
        yield shown(run.summary, "slo_attainment", percent)
        yield " of the requests met "
        limits = [f"{name.upper()} {number(limit)} ms" for name, limit in run.targets.items()]
        yield f"{'all targets' if len(limits) > 1 else 'the target'} ({', '.join(limits)})."
    if run.summary["saturated"]:
        yield element("strong", " More came than could be served, so latencies grow with the length of the run.")


def _card(title: str, *lines: Any) -> Markup:
    return element("div", element("dt", title), *(element("dd", *line) for line in lines), cls="card")


def _latencies(summary: Summary) -> Iterator[Markup]:
    for name, title in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        if summary[f"median_{name}_ms"] is None:
            yield _card(title, ("-",), (f"no request has a {name.upper()}",))
        else:
            yield _card(title, *_statistics(summary, name))


def _statistics(summary: Summary, name: str) -> Iterator[tuple[Any, ...]]:
    for statistic, word in (("median", "median"), ("p99", "p99")):
        yield (shown(summary, f"{statistic}_{name}_ms"), element("span", " ms ", word, cls="unit"),
               *_interval(summary, f"{statistic}_{name}_low_ms", f"{statistic}_{name}_high_ms"))


def _interval(summary: Summary, low: str, high: str, show: Callable[..., str] = number,
              unit: str = "") -> Iterator[Any]:
    """The ends of a 90 % interval in small print; nothing where they are unknown."""
    if summary.get(low) is not None:
        yield element("span", "90 %: ", shown(summary, low, partial(show, rounding=DOWN)), " to ",
                      shown(summary, high, partial(show, rounding=UP)), unit,
                      cls="interval")


def _throughput(summary: Summary) -> Iterator[Markup]:
    offered = (element("span", "offered: ", shown(summary, "offered_request_rate"), cls="interval"),)
    yield _card("Throughput", (shown(summary, "output_throughput"), element("span", " output tokens/s", cls="unit")),
                (shown(summary, "request_throughput"), element("span", " requests/s", cls="unit"),
                 *(offered if summary["offered_request_rate"] is not None else ())))


def _targets(run: Run) -> Iterator[Markup]:
    if not run.targets:
        yield _card("Targets", ("-",), ("none is set ([slo] of the scenario)",))
        return
    yield _card("Targets met", (shown(run.summary, "slo_attainment", percent),
                                element("span", " of requests", cls="unit")),
                (shown(run.summary, "request_goodput"), element("span", " requests/s of goodput", cls="unit")))


def _kilo(joules: float | None, **rounding: str) -> str:
    return number(None if joules is None else joules / 1e3, **rounding)


def _energy(summary: Summary) -> Iterator[Markup]:
    yield _card("Energy", (shown(summary, "joules_per_output_token"), element("span", " J/output token", cls="unit")),
                (shown(summary, "energy_joules", _kilo), element("span", " kJ of GPUs", cls="unit"),
                 *_interval(summary, "energy_joules_low", "energy_joules_high", _kilo)),
                (shown(summary, "average_watts"), element("span", " W on average", cls="unit")))


def _cost(summary: Summary) -> Iterator[Markup]:
    if summary["dollars_per_million_output_tokens"] is None:
        yield _card("Cost", ("-",), ("no price is set ([energy] of the scenario)",))
        return
    yield _card("Cost", ("$", shown(summary, "dollars_per_million_output_tokens"),
                         element("span", " per million output tokens", cls="unit")),
                *(("$", shown(summary, key), element("span", f" {word}", cls="unit"))
                  for key, word in (("gpu_dollars", "for GPUs"), ("energy_dollars", "for energy"))
                  if summary[key] is not None))

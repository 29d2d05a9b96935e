"""The points of a sweep against the first: its numbers, the settings that differ, and why latencies do."""

from collections.abc import Iterator, Sequence
from typing import Any

from ksim.cli.diff import change, value_of
from ksim.cli.flags import console
from ksim.cli.phase_tables import signed, title_of
from ksim.results.numbers import AGAINST_FIRST, number_of
from ksim.study.experiment import PHASES
from ksim.study.grid import value_text
from ksim.study.rows import SweepPoint
from ksim.views.run_directory import changed, flat
from ksim.views.tables import Table

#: The latencies that are explained, and the numbers that say why a group of phases takes longer or shorter.
_EXPLAINED = ("mean_ttft_ms", "mean_tpot_ms")
_BEHIND = {
    "queue": ("kv_cache_usage_peak", "preemptions"), "queue: rest": ("kv_cache_usage_peak", "preemptions"),
    "decode": ("mean_batch_sequences", "mean_step_ms"), "own prefill": ("prefix_cache_hit_rate",),
    "preemption": ("preemptions", "recomputed_tokens")}
#: More points than these have no room side by side.
MOST = 8
#: A group with a smaller share of all changes needs no word.
_WORTH = 0.1


def show(points: Sequence[SweepPoint]) -> dict[str, Any]:
    """Print the *points* that ran against the first of these, and return that for a JSON file."""
    names, ran = _names(points), [point for point in points if point.outcome.summary is not None]
    screen, (first, *others) = console(), ran
    screen.print(_numbers(ran, names))
    if (settings := _settings(ran, names)).rows:
        screen.print(settings)
    why = {point.number: [*_reasons(first, point)] for point in others}
    for point in others:
        for sentence in why[point.number]:
            screen.print(f"* {names[point.number]} against {names[first.number]}: {sentence}", markup=False)
    return {"first": first.number, "reasons": why}


def _names(points: Sequence[SweepPoint]) -> dict[int, str]:
    """What each point is called: by the values of its settings, but for those that are the same at all points."""
    keys = [key for key in points[0].settings if len({value_text(point.settings.get(key)) for point in points}) > 1]
    return {point.number: ", ".join(value_text(point.settings.get(key)) for key in keys) for point in points}


def _numbers(points: Sequence[SweepPoint], names: dict[int, str]) -> Table:
    """A row for each number, with its change against the first point."""
    first, *others = points
    titles = (title for point in others for title in (f">{names[point.number]}", ">change"))
    rows = Table.of("", f">{names[first.number]}", *titles)
    for key in AGAINST_FIRST:
        values = [point.value(key) for point in points]
        if any(value not in (None, 0) for value in values):
            cells = [(value_of(key, value), change(key, values[0], value)) for value in values]
            rows.add_row(number_of(key).title, cells[0][0], *(text for cell in cells[1:] for text in cell))
    return rows


def _settings(points: Sequence[SweepPoint], names: dict[int, str]) -> Table:
    """The settings that differ from those of the first point, beside the ones that the sweep sets."""
    first, *others = (flat(point.outcome.scenario) for point in points)
    keys = dict.fromkeys(key for other in others for key in changed(first, other)
                         if key not in points[0].settings and not key.startswith("serve.sglang."))
    rows = Table.of("other settings that differ", *(names[point.number] for point in points))
    for key in keys:
        rows.add_row(key, *(_setting(each.get(key)) for each in (first, *others)))
    return rows


def _reasons(first: SweepPoint, other: SweepPoint) -> Iterator[str]:
    """What makes up the change of each latency, largest first; nothing of runs that do not say."""
    for key in _EXPLAINED:
        start = f"{PHASES}.{key}."
        changes = {name.removeprefix(start): (other.value(name) or 0.0) - (first.value(name) or 0.0)
                   for name in dict.fromkeys((*(first.outcome.summary or ()), *(other.outcome.summary or ())))
                   if name.startswith(start)}
        whole = sum(map(abs, changes.values()))
        parts = [f"{group} {signed(change)}{_because(group, first, other)}"
                 for group, change in sorted(changes.items(), key=lambda item: -abs(item[1]))
                 if abs(change) > _WORTH * whole and signed(change)]
        if parts:
            yield f"{title_of(key.removesuffix('_ms'))} {signed(sum(changes.values())) or '+0'} ms: {'; '.join(parts)}"


def _because(group: str, first: SweepPoint, other: SweepPoint) -> str:
    """The numbers behind a *group* of phases that differ."""
    texts = [(number_of(key).title, *(value_of(key, point.value(key)) for point in (first, other)))
             for key in _BEHIND.get(group, ())]
    told = [f"{title} {after}, not {before}" for title, before, after in texts if before != after]
    return f" ({', '.join(told)})" if told else ""


def _setting(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values up to {value[-1]}"
    return "-" if value is None else value_text(value)

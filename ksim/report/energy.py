"""The part of the report about energy, emissions and cost."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from ksim.report.tables import beside, pairs
from ksim.report.wording import number, percent
from ksim.results.arrays import ratio
from ksim.results.metrics import Summary


def energy_block(summary: Summary) -> Iterable[RenderableType]:
    """The energy, its kernels and its requests; emissions and cost where rates are stated."""
    tables = [pairs("Energy", _whole(summary)), pairs("Energy, mean", _each(summary))]
    if costs := list(_costs(summary)):
        tables.append(pairs("Carbon and cost", costs))
    yield beside(*tables)
    yield Text(_remarks(summary), style="dim")


def _whole(summary: Summary) -> Iterable[tuple[str, str]]:
    total = summary["energy_joules"]
    yield "kJ of GPUs", number(total / 1e3)
    parts = {"  prefill": "prefill", "  decode": "decode", "  between steps": "idle", "static": "static"}
    for title, part in parts.items():
        yield title, percent(ratio(summary[f"{part}_energy_joules"], total))
    yield "average watts", number(summary["average_watts"])
    yield "tokens/J", number(summary["tokens_per_joule"])


def _each(summary: Summary) -> Iterable[tuple[str, str]]:
    yield "J to 1st token", number(summary["mean_energy_to_first_token_joules"])
    yield "J/token after it", number(summary["mean_energy_per_output_token_joules"])
    yield "J/request", number(summary["mean_energy_per_request_joules"])
    yield "  p99", number(summary["p99_energy_per_request_joules"])
    if summary["sessions"]:
        yield "J/session", number(summary["mean_energy_per_session_joules"])
    yield "J/token in all", number(summary["joules_per_output_token"])


def _costs(summary: Summary) -> Iterable[tuple[str, str]]:
    titles = {"gCO2e": "carbon_grams", "  per request": "carbon_grams_per_request",
              "  1,000 tokens": "carbon_grams_per_1k_output_tokens", "$ for energy": "energy_dollars",
              "$ for GPUs": "gpu_dollars", "$/M tokens": "dollars_per_million_output_tokens"}
    for title, key in titles.items():
        if summary[key] is not None:
            yield title, number(summary[key])


def _remarks(summary: Summary) -> str:
    """The interval of the energy, and what it includes."""
    low, high = summary["energy_joules_low"], summary["energy_joules_high"]
    host, drawn = summary["host_energy_joules"], summary["facility_energy_joules"]
    said = [] if low is None else [f"90 % interval of the energy: {number(low / 1e3)} to {number(high / 1e3)} kJ"]
    said.append(f"hosts and NICs take {number(host / 1e3)} kJ" if host else "hosts and NICs are not counted")
    if summary["energy_joules"] + host != drawn:
        said.append(f"{number(drawn / 1e3)} kJ from the grid, what the data centre takes included")
    return "; ".join(said)

"""Emissions and cost of a run, where the scenario states rates."""

from typing import Any

from attrs import frozen

from ksim.results.arrays import ratio


@frozen
class Rates:
    """Grams of CO2e and dollars per joule, and dollars per second of a GPU; None where not stated.

    `beside` is the power in watts that hosts and NICs draw for each GPU all the time.  `pue` is the energy of the
    data centre over that of its machines.
    """

    grams: float | None = None
    dollars: float | None = None
    gpu_dollars: float | None = None
    pue: float = 1.0
    beside: float = 0.0


def footprint(summary: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """The energy that the run of *summary* draws from the grid, its emissions and its cost at *rates*."""
    gpu_seconds = summary["gpus"] * summary["duration"]
    host = rates.beside * gpu_seconds
    drawn = rates.pue * (summary["energy_joules"] + host)
    grams, energy = _times(rates.grams, drawn), _times(rates.dollars, drawn)
    rent = _times(rates.gpu_dollars, gpu_seconds)
    stated = [cost for cost in (energy, rent) if cost is not None]
    thousands = summary["generated_tokens"] / 1e3
    return {
        "host_energy_joules": host,
        "facility_energy_joules": drawn,
        "carbon_grams": grams,
        "carbon_grams_per_1k_output_tokens": _per(grams, thousands),
        "carbon_grams_per_request": _per(grams, summary["completed"]),
        "energy_dollars": energy,
        "gpu_dollars": rent,
        "dollars_per_million_output_tokens": _per(sum(stated) if stated else None, thousands / 1e3),
    }


def _times(rate: float | None, amount: float) -> float | None:
    return None if rate is None else rate * amount


def _per(amount: float | None, whole: float) -> float | None:
    return None if amount is None else ratio(amount, whole)

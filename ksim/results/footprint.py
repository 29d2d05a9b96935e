"""Emissions and cost of a run, where the scenario states rates."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import astuple, frozen

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
    return _told(_Amounts.of(summary["energy_joules"], summary["gpus"] * summary["duration"], rates), summary)


def fleet_footprint(summary: dict[str, Any], rates: Rates, of_pools: Mapping[str, Rates]) -> dict[str, Any]:
    """The same for a run with pools, each at its own rates, by its name, or else at *rates*; also pool by pool."""
    pools, parts = {}, []
    for name, pool in summary["pools"].items():
        gpu_seconds = pool["gpus"] * summary["duration"]
        amounts = _Amounts.of(pool["energy_joules"], gpu_seconds, of_pools.get(name, rates))
        parts.append(amounts)
        millions = pool["total_input_tokens"] / 1e6
        pools[name] = {**pool, **_told(amounts, {**pool, "generated_tokens": pool["total_output_tokens"]}),
                       "dollars_per_million_input_tokens": _per(amounts.dollars, millions)}
    return {**_told(_Amounts.sum(parts), summary), "pools": pools}


@frozen
class _Amounts:
    """Joules of hosts and from the grid, grams of CO2e, and dollars for energy and for GPUs."""

    host: float
    drawn: float
    grams: float | None
    energy: float | None
    rent: float | None

    @classmethod
    def of(cls, joules: float, gpu_seconds: float, rates: Rates) -> "_Amounts":
        host = rates.beside * gpu_seconds
        drawn = rates.pue * (joules + host)
        return cls(host, drawn, _times(rates.grams, drawn), _times(rates.dollars, drawn),
                   _times(rates.gpu_dollars, gpu_seconds))

    @classmethod
    def sum(cls, parts: Sequence["_Amounts"]) -> "_Amounts":
        """The sum of *parts*; None where one of them is unknown."""
        columns: list[Any] = list(zip(*map(astuple, parts), strict=True))
        added: list[Any] = [None if None in column else sum(column) for column in columns]
        return cls(*added)

    @property
    def dollars(self) -> float | None:
        stated = [cost for cost in (self.energy, self.rent) if cost is not None]
        return sum(stated) if stated else None


def _told(amounts: _Amounts, summary: Mapping[str, Any]) -> dict[str, Any]:
    thousands = summary["generated_tokens"] / 1e3
    return {
        "host_energy_joules": amounts.host,
        "facility_energy_joules": amounts.drawn,
        "carbon_grams": amounts.grams,
        "carbon_grams_per_1k_output_tokens": _per(amounts.grams, thousands),
        "carbon_grams_per_request": _per(amounts.grams, summary["completed"]),
        "energy_dollars": amounts.energy,
        "gpu_dollars": amounts.rent,
        "dollars_per_million_output_tokens": _per(amounts.dollars, thousands / 1e3),
    }


def _times(rate: float | None, amount: float) -> float | None:
    return None if rate is None else rate * amount


def _per(amount: float | None, whole: float) -> float | None:
    return None if amount is None else ratio(amount, whole)

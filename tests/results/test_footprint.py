import pytest

from ksim.results.numbers import CostRates
from ksim.views.result import Result

from . import by_hand

#: A gram and a dollar per kJ, a cent per second of a GPU, 50 W beside each; half as much again for the building.
STATED = CostRates(grams=1e-3, dollars=1e-3, gpu_dollars=0.01, pue=1.5, beside=50.0)


def test_footprints_without_stated_rates_are_unknown():
    summary = Result(by_hand.small()).summary
    assert summary["host_energy_joules"] == 0.0
    assert summary["facility_energy_joules"] == summary["energy_joules"] == 1080.0
    assert not [key for key in summary if ("carbon" in key or "dollars" in key) and summary[key] is not None]


def test_footprint_of_the_small_log():
    summary = Result(by_hand.small(), rates=STATED).summary
    drawn = 1.5 * (1080 + 2 * 50 * 4.5)
    expected = {
        "energy_joules": 1080.0, "host_energy_joules": 450.0, "facility_energy_joules": drawn,
        "carbon_grams": drawn / 1e3, "carbon_grams_per_1k_output_tokens": drawn / 4,
        "carbon_grams_per_request": drawn / 2e3, "energy_dollars": drawn / 1e3, "gpu_dollars": 0.09,
        "dollars_per_million_output_tokens": (drawn / 1e3 + 0.09) / 4e-6,
    }
    assert {key: summary[key] for key in expected} == pytest.approx(expected)


def test_tokens_cost_what_is_stated_of_energy_and_gpus():
    summary = Result(by_hand.small(), rates=CostRates(gpu_dollars=0.01)).summary
    assert summary["energy_dollars"] is summary["carbon_grams"] is None
    assert summary["dollars_per_million_output_tokens"] == pytest.approx(0.09 / 4e-6)


def test_the_report_says_what_is_counted():
    silent, stated = Result(by_hand.small()).report(), Result(by_hand.sleepy(), rates=STATED).report()
    assert "hosts and NICs are not counted" in silent and "gCO2e" not in silent
    stated = " ".join(stated.split())
    assert "90 % interval of the energy: 0.82 to 0.86 kJ; hosts and NICs take 0.45 kJ;" in stated
    assert "kJ from the grid" in stated and "gCO2e" in stated and "$ for GPUs" in stated

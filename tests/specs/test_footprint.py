"""The `[energy]` of a scenario and the grids of the catalogue: what they may say, and what they do say."""

import pytest

from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.specs.hardware import ElectricGrid, Footprint

GRIDS = {name: structure(ElectricGrid, catalog.load("grids", name), name) for name in catalog.entries("grids")}


def test_quantities_may_have_units():
    stated = structure(Footprint, {"host_watts": "1.5 kW", "sleep_after": "500 ms", "carbon_intensity": 300})
    assert (stated.host_watts, stated.sleep_after, stated.carbon_intensity) == (1500.0, 0.5, 300.0)


@pytest.mark.parametrize(("table", "problem"), [
    ({"pue": 0.9}, "'pue' must be >= 1"),
    ({"pue": float("inf")}, "is not finite"),
    ({"carbon_intensity": -1}, "'carbon_intensity' must be >= 0"),
    ({"price_per_kwh": -0.1}, "'price_per_kwh' must be >= 0"),
    ({"price_per_gpu_hour": "cheap"}, "'cheap' is not a quantity"),
    ({"price_per_gpu_hour": {"h100": -2.5}}, "'price_per_gpu_hour' must be >= 0"),
    ({"price_per_gpu_hour": {"h100": "cheap"}}, "price_per_gpu_hour: 'cheap' is not a quantity"),
    ({"price_per_gpu_hour": [2.5]}, "price_per_gpu_hour"),
    ({"host_watts": -5}, "'host_watts' must be >= 0"),
    ({"sleep_after": "-1 s"}, "'sleep_after' must be >= 0"),
    ({"grid": "us", "carbon_intensity": 300}, "name a grid or state a carbon_intensity, not both"),
    ({"carbon_intensiti": 300}, r"carbon_intensiti: unknown key; did you mean 'carbon_intensity'\?"),
])
def test_energy_settings_out_of_range_are_refused(table, problem):
    with pytest.raises(ConfigError, match=problem):
        structure(Footprint, table, "energy")


@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_says_of_when_and_by_whom_its_figure_is(name):
    grid = GRIDS[name]
    assert 10 < grid.intensity < 1000
    assert 2020 <= grid.year <= 2030 and str(grid.year) in grid.source and "https://" in grid.source


def test_coal_is_worse_than_water():
    """The order that everybody knows; that of a country lies among those of its parts."""
    order = ["no", "fr", "eu", "us", "world", "cn", "pl", "in"]
    assert order == sorted(order, key=lambda name: GRIDS[name].intensity)
    assert GRIDS["us-caiso"].intensity < GRIDS["us"].intensity < GRIDS["us-midwest"].intensity

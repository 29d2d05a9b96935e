"""Names to values, where more than one file has a say."""

import tomllib

import pytest

from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.scenario.hardware import grid_of, rates_of, system_of
from ksim.scenario.scenario import Scenario
from ksim.specs.hardware import Footprint
from tests.scenario.tables import TABLE

SYSTEM = system_of(TABLE["gpu"])


def test_rates_are_those_of_a_joule_and_a_gpus_second():
    stated = Footprint(carbon_intensity=360, pue=1.3, host_watts="800 W", nic_watts=25, price_per_kwh=0.36,
                       price_per_gpu_hour=3.6)
    rates = rates_of(stated, SYSTEM)
    assert (rates.grams, rates.dollars, rates.gpu_dollars) == pytest.approx((1e-4, 1e-7, 1e-3))
    assert (rates.pue, rates.beside) == (1.3, 100 + 25)


def test_rates_that_are_not_given_are_not_assumed():
    rates = rates_of(Footprint(), SYSTEM)
    assert (rates.grams, rates.dollars, rates.gpu_dollars, rates.pue, rates.beside) == (None, None, None, 1.0, 0.0)


def test_each_gpu_has_its_price_in_a_table_of_them(tmp_path):
    stated = structure(Footprint, {"price_per_gpu_hour": {"h100": 2.5, SYSTEM.gpu: 3.6}})
    assert rates_of(stated, SYSTEM).gpu_dollars == pytest.approx(1e-3)
    mine = tmp_path / f"{SYSTEM.gpu}.toml"
    mine.write_text(catalog.path_of("gpus", SYSTEM.gpu).read_text())
    assert rates_of(stated, system_of(str(mine))).gpu_dollars == pytest.approx(1e-3)


def test_prices_by_gpu_are_written_and_read_again():
    scenario = Scenario.of({**TABLE, "energy": {"price_per_gpu_hour": {TABLE["gpu"]: 3}, "pue": 1.5}})
    assert tomllib.loads(scenario.to_toml())["energy"]["price_per_gpu_hour"] == {TABLE["gpu"]: 3.0}
    assert Scenario.of(tomllib.loads(scenario.to_toml())) == scenario
    more = scenario.with_values({"energy.price_per_gpu_hour.l4": "0.5"})
    assert more.energy.price_per_gpu_hour == {TABLE["gpu"]: 3.0, "l4": 0.5}


def test_a_gpu_without_a_price_is_named():
    with pytest.raises(ConfigError, match=f"price_per_gpu_hour: has no price of '{SYSTEM.gpu}'; it has l4, l40s"):
        rates_of(Footprint(price_per_gpu_hour={"l4": 1, "l40s": 2}), SYSTEM)


def test_a_grid_is_one_of_the_catalogue_or_a_file(tmp_path):
    (tmp_path / "roof.toml").write_text('name = "our roof"\nintensity = 40\nyear = 2024\nsource = "its data sheet"\n')
    scenario = Scenario.of({**TABLE, "energy": {"grid": "roof.toml"}}, folder=tmp_path)
    assert rates_of(scenario.energy, SYSTEM).grams == pytest.approx(40 / 3.6e6)
    assert rates_of(Footprint(grid="fr"), SYSTEM).grams == grid_of("fr").intensity / 3.6e6
    assert Scenario.of({**TABLE, "energy": {"grid": "fr"}}, folder=tmp_path).energy.grid == "fr"


def test_an_unknown_grid_is_named_with_those_that_are_near():
    with pytest.raises(UnknownName, match="no grid named 'us-ercott'; did you mean 'us-ercot'"):
        rates_of(Footprint(grid="us-ercott"), SYSTEM)


def written(folder, tables: str) -> str:
    """A file of an HGX H100 with further *tables*."""
    path = folder / "mine.toml"
    path.write_text(catalog.path_of("systems", "hgx-h100").read_text() + tables)
    return str(path)


@pytest.mark.parametrize("tables, problem", [
    ("[pcie]\nbandwidth = 64", "pcie.bandwidth"),
    ("[pcie]\nbandwidth = '64 GB'", "pcie.bandwidth"),
    ("[pcie]\nlanes = 16", "pcie.lanes: unknown key; expected bandwidth, efficiency, joint, nics, source"),
    ("[pcie]\nefficiency = 1.5", "pcie: 'efficiency' must be <= 1: 1.5"),
    ("[pcie]\njoint = '120 GB/s'", "reaches 50 GB/s one way over PCIe; both ways together reach between that and twice"
                                  " that, not 120; correct pcie.joint"),
    ("[pcie]\njoint = '40 GB/s'", "not 40; correct pcie.joint"),
    ("[leaf]\nnodes = 0", "leaf: 'nodes' must be > 0: 0"),
    ("[leaf]\nnodes = 4\noversubscription = 0.5", "leaf: 'oversubscription' must be >= 1: 0.5"),
    ("[storage]\nservers = 2", "storage.bandwidth: is missing"),
    ("[storage]\nbandwidth = '1 GB/s'\nnode = '3 s'", "storage.node"),
])
def test_links_that_make_no_sense_are_refused(tables, problem, tmp_path):
    with pytest.raises(ConfigError) as error:
        system_of(None, written(tmp_path, tables))
    assert problem in str(error.value)


def test_a_file_may_say_all_links(tmp_path):
    found = system_of(None, written(tmp_path, "[pcie]\nbandwidth = '32 GB/s'\njoint = '45 GB/s'\n[leaf]\nnodes = 4\n"
                                    "oversubscription = 3\n[storage]\nbandwidth = '10 GB/s'\nservers = 8\n"))
    assert (found.pcie.bandwidth, found.pcie.joint, found.leaf.oversubscription) == (32e9, 45e9, 3)
    assert (found.storage.bandwidth, found.storage.servers, found.storage.node) == (10e9, 8, None)

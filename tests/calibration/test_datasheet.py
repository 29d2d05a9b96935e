"""GPUs of which a data sheet is all that is known."""

import json
import tomllib
from statistics import median

import pytest
from attrs import evolve

from ksim.calibration import power as extrapolation
from ksim.calibration.datasheet import REQUIRED, gpu_of_table
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, KsimError
from ksim.foundation.units import DType
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import gpu_of, system_of
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.specs.hardware import ARCHITECTURES, BASES

NAMES = catalog.entries("gpus")


def sheet(name="l40s", **changes):
    """What the data sheet of a GPU of the catalogue says."""
    table = catalog.load("gpus", name)
    kept = {key: table[key] for key in (*REQUIRED, "flops")}
    return {**kept, "tdp": table["power"]["limit"], **changes}


@pytest.mark.parametrize("name", NAMES)
def test_power_estimated_from_a_data_sheet_is_near_that_of_the_catalogue(name):
    """But for the idle power of an L4, which is 0.39 of its limit, and what follows from it, and for the FLOP of an
    H20, whose die could do more than its peaks allow."""
    known, estimated = gpu_of(name).power, gpu_of_table(sheet(name), name).power
    assert (estimated.limit, estimated.basis, estimated.reach) == (known.limit, "estimated", extrapolation.REACH)
    assert (estimated.hbm, estimated.l2) == pytest.approx((known.hbm, known.l2), rel=0.01)
    most = 0.6 if name == "l4" else 0.35
    assert (estimated.idle, estimated.busy) == pytest.approx((known.idle, known.busy), rel=most)
    if name != "h20":
        assert estimated.flop[DType.BF16] == pytest.approx(known.flop[DType.BF16], rel=0.4)
    assert estimated.flop.keys() == known.flop.keys()
    assert estimated.clocks.boost == pytest.approx(gpu_of(name).clock)
    assert estimated.clocks.least == extrapolation.LOWEST


def test_idle_power_is_usual_for_the_catalogue():
    shares = [gpu_of(name).power.idle / gpu_of(name).power.limit for name in NAMES]
    assert median(shares) == pytest.approx(extrapolation.IDLE, abs=0.01)
    assert (min(shares), max(shares)) == pytest.approx((0.14, 0.39), abs=0.01)


def test_power_that_a_file_states_is_kept():
    stated = {"idle": "50 W", "hbm": "30 pJ/B", "flop": {"bf16": "1 pJ/FLOP"}}
    power = gpu_of_table(sheet(power=stated), "mine").power
    assert (power.idle, power.hbm, power.flop) == (50.0, 30e-12, {DType.BF16: 1e-12})
    assert power.basis == "estimated" and power.clocks is not None
    whole = {**stated, "limit": "300 W", "link": "80 pJ/B", "source": "a meter"}
    alone = gpu_of_table(sheet(power=whole), "mine").power
    assert (alone.limit, alone.basis, alone.clocks, alone.busy) == (300.0, "stated", None, 0.0)


def test_the_architectures_are_those_of_the_catalogue():
    assert {gpu_of(name).architecture for name in NAMES} == {*ARCHITECTURES}
    assert {gpu_of(name).power.basis for name in NAMES} < {*BASES}


@pytest.mark.parametrize("lacking", [("clock",), ("sms", "l2"), REQUIRED])
def test_everything_that_a_data_sheet_lacks_is_named_at_once(lacking):
    table = {key: value for key, value in sheet().items() if key not in lacking}
    with pytest.raises(ConfigError, match=f"mine: lacks {', '.join(lacking)}; its data sheet has them"):
        gpu_of_table(table, "mine")


#: What nobody means under any key.
NONSENSE = (None, "x", -1, 0, 1e19, 10**400, True, [], [None], {"a": 1}, "1 GB/s", "-3 W", "1e300 B", float("nan"))


@pytest.mark.parametrize("table", [sheet(), catalog.load("gpus", "h200")], ids=["data sheet", "h200"])
def test_nonsense_under_any_key_is_a_gpu_or_an_error_by_key(table):
    for part in (table, table["flops"], *(table[key] for key in ("power",) if key in table)):
        for key, value in list(part.items()):
            for nonsense in NONSENSE:
                part[key] = nonsense
                try:
                    assert gpu_of_table(table, "mine").power.limit > 0
                except ConfigError as error:
                    assert str(error).startswith("mine: ") and "\n" not in str(error)
            part[key] = value


@pytest.mark.parametrize("name", ["pcie-l4", "gb300-nvl72"])
def test_nonsense_under_any_key_is_a_system_or_an_error(tmp_path, name):
    table, path = catalog.load("systems", name), tmp_path / "mine.json"
    for part in (table, *(link for link in table.values() if isinstance(link, dict))):
        for key, value in list(part.items()):
            for nonsense in NONSENSE[:9]:
                part[key] = nonsense
                path.write_text(json.dumps(table))
                try:
                    assert system_of(None, str(path)).gpus > 0
                except KsimError as error:
                    assert "\n" not in str(error)
            part[key] = value


def test_a_gpu_without_a_system_is_in_a_node_of_eight(tmp_path):
    for name, extra in (("pcie", ""), ("nvlink", 'nvlink = "300 GB/s"\n')):
        (tmp_path / f"{name}.toml").write_text(extra + _toml(sheet()))
        system = system_of(str(tmp_path / f"{name}.toml"))
        assert (system.gpus, system.interconnect, system.network) == (8, name, None)
        with pytest.raises(ConfigError, match="nodes: 2 nodes of L40S need a system"):
            system_of(str(tmp_path / f"{name}.toml"), nodes=2)
    assert (system.inside.bandwidth, system.inside.efficiency) == (300e9, 0.8), "as in an HGX A100"


def test_a_file_of_a_gpu_and_one_of_its_system_agree_whatever_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for folder in (".", "folder"):
        (tmp_path / folder / "mine.toml").write_text('system = "box.toml"\n' + _toml(sheet()))
        (tmp_path / folder / "box.toml").write_text(_toml({**catalog.load("systems", "pcie-l4"), "gpu": "mine.toml"}))
    for gpu, system in ((None, "folder/box.toml"), ("folder/mine.toml", None), ("folder/mine.toml", "folder/box.toml"),
                        (str(tmp_path / "mine.toml"), "box.toml"), ("mine.toml", "pcie-l4"), ("L4", "pcie-l4")):
        found = system_of(gpu, system)
        assert found.gpus == 8 and gpu_of(found.gpu).name == ("L4" if gpu == "L4" else "L40S")
    with pytest.raises(ConfigError, match="gpu: is 'l4', but system 'folder/box.toml' has 'folder/mine.toml'"):
        system_of("l4", "folder/box.toml")


def test_a_run_reports_that_power_is_estimated_and_can_be_repeated(tmp_path):
    (tmp_path / "mine.toml").write_text(_toml(sheet()))
    table = {"model": "llama-3.2-1b", "gpu": str(tmp_path / "mine.toml"), "workload": ANY_WORKLOAD}
    site = Deployment.of(Scenario.of(table))
    assert site.remarks == ("power of L40S is estimated from its data sheet (350 W, of which 63 idle): joules may be"
                            " 40% off",)
    again = Deployment.of(site.scenario)
    assert (again.gpu, again.system) == (site.gpu, site.system)
    assert not Deployment.of(Scenario.of({**table, "gpu": "l40s"})).remarks


def test_figures_of_a_gpu_may_be_set_and_what_follows_from_them_follows():
    base = {"model": "llama-3.2-1b", "gpu": "h200", "workload": ANY_WORKLOAD}
    site = Deployment.of(Scenario.of(base).with_values(
        {"gpu.bandwidth": "6 TB/s", "gpu.nvlink": "900 GB/s", "gpu.sms": 66, "gpu.clock": "990 MHz",
         "gpu.flops.fp8": "3 PFLOP/s", "gpu.power.limit": "600 W"}))
    before, after = gpu_of("h200"), site.gpu
    assert (after.bandwidth, after.sms, after.power.limit, site.system.inside.bandwidth) == (6e12, 66, 600, 900e9)
    assert after.flops[DType.BF16] == pytest.approx(before.flops[DType.BF16] / 4) and after.flops[DType.FP8] == 3e15
    assert after.power.busy == before.power.busy / 2 and after.power.flop == before.power.flop
    assert after.power.clocks.boost == after.clock == 990e6
    assert after.power.clocks.saved(495e6) == pytest.approx(before.power.clocks.saved(990e6))
    assert site.remarks[0].startswith("H200 SXM has other figures here (bandwidth = 6 TB/s, nvlink = 900 GB/s, sms = 6")
    again = Deployment.of(Scenario.of(tomllib.loads(site.scenario.to_toml())))
    assert (again.gpu, again.system, again.scenario) == (site.gpu, site.system, site.scenario)
    slow, fast = (made.timers()[0].step_cost(Batch.parse("", "4096+0")).seconds
                  for made in (again, Deployment.of(Scenario.of(base))))
    assert slow > 2 * fast


def test_figures_without_a_name_are_of_the_gpu_of_the_system():
    scenario = Scenario.of({"model": "llama-3.2-1b", "system": "hgx-h100", "workload": ANY_WORKLOAD,
                            "gpu": {"memory": "120 GiB"}})
    assert (str(scenario.gpu), Deployment.of(scenario).gpu.memory) == ("h100 (memory=120 GiB)", 120 * 2**30)
    mine = gpu_of(Choice("h200", {"tdp": "500 W"}))
    assert (mine.power.limit, mine.power.hbm) == (500, gpu_of("h200").power.hbm)


def test_a_t4_computes_in_fp16_and_says_so():
    site = Deployment.of(Scenario.of({"model": "llama-3.2-1b", "gpu": "t4", "workload": ANY_WORKLOAD}))
    assert site.gpu.flops[DType.BF16] == site.gpu.flops[DType.FP16] == 65e12
    assert site.remarks == ("T4 has no BF16: vLLM falls back to FP16 there, and 16-bit kernels are priced at its rate",)


def test_a_system_needs_gpus_that_have_its_links(tmp_path):
    (tmp_path / "mine.toml").write_text('system = "hgx-a100"\n' + _toml(sheet()))
    with pytest.raises(ConfigError, match="'hgx-a100' joins its GPUs over nvlink of 300 GB/s, and L40S has 0 GB/s of"):
        system_of(str(tmp_path / "mine.toml"))
    for name in catalog.entries("systems"):
        assert system_of(None, name).name
    assert evolve(system_of("l4"), nodes=1).gpus == 8


def _toml(table):
    import tomli_w

    return tomli_w.dumps(table)

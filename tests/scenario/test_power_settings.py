"""Caps, clocks and governors of a scenario, and what they do to a run."""

import pytest

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from tests.scenario.tables import TABLE

#: Prompts that keep the H200 above its limit, and a while of decoding.
LOAD = {"synthetic": {"count": 24, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 4000},
                      "output": {"kind": "fixed", "value": 60}}}


def run(detail: str = "step", **power):
    table = {**TABLE, "model": "llama-3.1-8b", "gpu": "h200", "workload": LOAD, "detail": detail,
             "serve": {"max_model_len": 8192}}
    return simulate(Scenario.of({**table, "power": power} if power else table)).summary


def test_a_cap_is_kept_and_costs_prompts_more_than_decoding():
    free, capped = run(), run(cap="500 W")
    assert capped["average_watts"] < 505.0 < free["average_watts"]
    assert capped["energy_joules"] < free["energy_joules"]
    slower = {name: capped[name] / free[name] for name in ("mean_ttft_ms", "mean_tpot_ms")}
    assert slower["mean_ttft_ms"] > 1.1
    assert capped["mean_sm_clock_mhz"] < free["mean_sm_clock_mhz"] and capped["throttled_share"] > 0.9


@pytest.mark.parametrize("gpu, cap", [("h200", 450), ("h200", 420), ("h200", 350), ("h200", 310), ("h100", 320),
                                      ("h100", 250), ("l4", 40)])
def test_watts_are_within_the_cap_or_a_remark_says_so(gpu, cap):
    result = simulate(Scenario.of({**TABLE, "model": "llama-3.1-8b", "gpu": gpu, "oracle": "roofline",
                                   "power": {"cap": cap}, "workload": {"synthetic": {
                                       **LOAD["synthetic"], "count": 6, "prompt": {"kind": "fixed", "value": 1000}}},
                                   "serve": {"max_model_len": 4096}}))
    steps, summary = result.history.steps, result.summary
    slowest = steps.stage_steps.scaling.clock < 1.001 * result.log.engines[0].least_clock
    above = steps.watts[slowest].max(initial=0) > cap
    kept = summary["average_watts"] / summary["gpus"] <= cap and not above
    said = [remark for remark in result.remarks if remark.startswith(f"power.cap = {cap} W was ")]
    assert bool(said) != kept
    assert (summary["above_limit_share"] > 0) == above
    if above:
        assert "was not kept: for" in said[0]
        assert f"up to {summary['max_step_watts']:.0f} W" in said[0]


def test_a_cap_that_no_step_keeps_is_refused_and_one_that_all_do_is_named():
    with pytest.raises(ConfigError, match=r"no step of llama-3.1-8b keeps 150 W on H100 SXM: at its lowest clock, 210"
                                          r" MHz, a prompt of \d+ tokens draws \d+ W; the lowest cap that all"
                                          r" of them keep is about \d+ W") as refused:
        simulate(table("h100", 150))
    kept = simulate(table("h100", 1.02 * float(str(refused.value).split()[-2])))
    assert not kept.remarks
    assert kept.summary["above_limit_share"] == 0.0


def table(gpu: str, cap: float) -> Scenario:
    return Scenario.of({**TABLE, "model": "llama-3.1-8b", "gpu": gpu, "power": {"cap": cap}, "oracle": "roofline",
                        "workload": {"synthetic": {**LOAD["synthetic"], "count": 8}}, "serve": {"max_model_len": 8192}})


def test_low_clocks_for_decoding_save_energy_and_cost_little_time():
    free = run()
    phased = run(governor={"name": "per_phase", "decode": "1300 MHz"})
    assert phased["energy_joules"] < 0.98 * free["energy_joules"]
    assert phased["mean_tpot_ms"] < 1.1 * free["mean_tpot_ms"]
    assert phased["mean_ttft_ms"] == pytest.approx(free["mean_ttft_ms"], rel=0.01)


def test_the_slack_governor_saves_energy():
    free, thrifty = run(), run(governor={"name": "slack", "share": 0.05})
    assert thrifty["energy_joules"] < free["energy_joules"]
    assert thrifty["duration"] < 1.06 * free["duration"]


def test_numbers_that_change_fewer_bits_save_joules_and_clocks_follow():
    """Prompts are above the limit: with cheaper FLOP, their clock falls less."""
    normal, sparse = run(), run(data=0.8)
    assert run(data=1.0) == normal
    assert sparse["energy_joules"] < 0.99 * normal["energy_joules"]
    assert sparse["mean_sm_clock_mhz"] > normal["mean_sm_clock_mhz"]
    assert sparse["mean_ttft_ms"] < 0.97 * normal["mean_ttft_ms"]


def test_a_clock_limit_at_the_boost_clock_changes_nothing():
    assert run(clock="1980 MHz") == run()


def test_detail_changes_nothing_under_a_cap():
    whole, ranks = (run(detail, cap="450 W") for detail in ("step", "rank"))
    assert whole["energy_joules"] == pytest.approx(ranks["energy_joules"], rel=1e-9)
    assert whole["duration"] == pytest.approx(ranks["duration"], rel=1e-9)


@pytest.mark.parametrize("power, problem", [
    ({"cap": "100 W"}, "power: cap: 100 W cannot be kept by H200 SXM, which idles at 128.8 W and is limited to 700 W"),
    ({"cap": "701 W"}, "power: cap: 701 W cannot be kept"),
    ({"clock": "2 GHz"}, "power: clock: 2000 MHz cannot be set on H200 SXM, whose SMs run at 345 to 1980 MHz"),
    ({"clock": "200 MHz"}, "power: clock: 200 MHz cannot be set"),
    ({"cap": -1}, "power: 'cap' must be > 0"),
    ({"data": 0}, "power: 'data' must be > 0"),
    ({"data": 3}, "power: 'data' must be <= 2"),
])
def test_impossible_power_settings_are_refused(power, problem):
    with pytest.raises(ConfigError, match=problem):
        run(**power)


def test_an_unknown_governor_is_refused():
    with pytest.raises(UnknownName, match="per_phase"):
        run(governor="per_fase")

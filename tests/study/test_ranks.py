"""What it costs that GPUs differ: each cause is switched off, and nothing else changes."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError
from ksim.results.numbers import OF_RANKS
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.specs.hardware import RankSettings, SlowGpu
from ksim.study.ranks import ALL, played, rank_costs, without
from tests.properties import examples
from tests.results.ranks_by_hand import SLOW

SLOWS = st.builds(SlowGpu, st.integers(0, 7), speed=st.sampled_from([1.0, 0.9]), watts=st.sampled_from([0.0, 30.0]),
                  delay=st.sampled_from([0.0, 1e-3]), link=st.sampled_from([1.0, 0.5]),
                  start=st.sampled_from([0.0, 1.0]))
SETTINGS = st.builds(RankSettings, st.lists(SLOWS, max_size=3).map(tuple), speed_spread=st.sampled_from([0.0, 0.1]),
                     power_spread=st.sampled_from([0.0, 0.1]), launch_jitter=st.sampled_from([0.0, 1e-3]))


@given(SETTINGS)
@examples(60)
def test_without_a_cause_all_others_are_left(settings):
    off = without(settings)
    for cause, rest in off.items():
        assert cause == ALL or without(rest).keys() - {ALL} == off.keys() - {ALL, cause}
    if ALL in off:
        assert not without(off[ALL]) and off[ALL].experts == "even"
    assert (ALL in off) == (len(off.keys() - {ALL}) > 1)


def test_experts_are_a_cause_only_where_they_are_drawn():
    assert without(RankSettings()) == {"experts": RankSettings(experts="even")}
    assert without(RankSettings(), drawn=False) == {} and without(RankSettings(experts="even")) == {}


def test_processes_of_ones_own_are_a_cause():
    with_one = evolve(RankSettings(), processes=("interfere:throttle",))
    assert without(with_one, drawn=False) == {"processes": RankSettings()}


def test_what_a_slow_gpu_costs_is_the_difference_to_a_run_of_equal_ones():
    scenario = Scenario.of({**SLOW, "ranks": {"slow": [{"gpu": 2, "speed": 0.9, "delay": "300 us"}]}})
    ended = []
    costs = rank_costs(played(scenario), scenario, lambda: ended.append(1))
    assert [*costs.without] == ["clock", "host", ALL] and len(ended) == 3
    equal = simulate(Scenario.of({key: value for key, value in SLOW.items() if key not in ("ranks", "detail")})).summary
    assert costs.without[ALL] == {key: equal[key] for key in OF_RANKS}
    alone = simulate(Scenario.of(SLOW)).summary
    assert costs.without["host"] == {key: alone[key] for key in OF_RANKS}
    for cause in costs.without:
        assert costs.change(cause, "mean_tpot_ms") > 0 > costs.change(cause, "output_throughput")
    assert costs.content["costs"][ALL]["mean_tpot_ms"] == costs.change(ALL, "mean_tpot_ms")


@pytest.mark.parametrize(("changes", "problem"), [
    ({"detail": "step", "ranks": {}}, "detail: 'step' takes all GPUs of a stage to be alike"),
    ({"ranks": {}}, "ranks: no GPU of the run can differ from others: say how they do")])
def test_runs_whose_gpus_cannot_differ_are_refused(changes, problem):
    with pytest.raises(ConfigError, match=problem):
        played(Scenario.of({**SLOW, **changes}))

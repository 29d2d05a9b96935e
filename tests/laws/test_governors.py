"""Every governor answers with what a GPU can be set to, and the same to the same question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cost.energy import FREE, Setting
from ksim.engine.governors import Supervised, checked
from ksim.engine.governors.clocks import PerPhase, Slack
from ksim.flow.batch import Batch
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.scenario.hardware import gpu_of

H200 = gpu_of("h200")
batches = st.builds(lambda decodes, chunks: Batch.of(*[(1, 100)] * decodes, *[(new, 0) for new in chunks]),
                    st.integers(1, 4), st.lists(st.integers(2, 100), max_size=2))
step_costs = st.builds(lambda computing, rest: StepCost.of([PricedBlock.of((
    KernelCost.of("a", "gemm", computing, bound="compute"), KernelCost.of("b", "gemm", rest)))]),
    st.floats(0, 1), st.floats(1e-6, 1))


@pytest.mark.parametrize("name", catalog.names("engine.governors"))
@given(batch=batches, timeline=step_costs)
def test_settings_of_governors_can_be_kept_by_the_gpu(name, batch, timeline):
    governor = plugin("engine.governors", Choice(name))
    answer = governor.setting(batch, timeline, H200)
    assert checked(answer, H200, name) == answer == governor.setting(batch, timeline, H200)


@given(batch=batches, timeline=step_costs, share=st.floats(0, 0.9))
def test_slack_costs_a_step_no_more_than_its_share_and_uses_it_up(batch, timeline, share):
    clock = Slack(share).setting(batch, timeline, H200).clock
    longer = timeline.seconds + (H200.power.clocks.slowed(clock) - 1) * timeline.compute_bound
    assert longer <= (1 + share) * timeline.seconds * (1 + 1e-9)
    assert clock == H200.power.clocks.known or longer == pytest.approx((1 + share) * timeline.seconds)


def test_phases_are_told_apart_by_their_prompts():
    governor = PerPhase(prefill="1980 MHz", decode="1200 MHz", decode_cap="400 W")
    timeline = StepCost.of([])
    assert governor.setting(Batch.of((1, 5), (7, 0)), timeline, H200) == Setting(None, 1.98e9)
    assert governor.setting(Batch.of((1, 5)), timeline, H200) == Setting(400.0, 1.2e9)


def test_a_fixed_clock_or_cap_holds_whatever_the_governor_says():
    told = Supervised(H200, Setting(cap=500.0, clock=1.5e9), PerPhase(decode="1200 MHz", prefill="1980 MHz"))
    assert told.setting(Batch.of((1, 5)), StepCost.of([])) == Setting(500.0, 1.2e9)
    assert told.setting(Batch.of((7, 0)), StepCost.of([])) == Setting(500.0, 1.5e9)
    assert Supervised(H200).setting(Batch.of((1, 5)), StepCost.of([])) == FREE


@pytest.mark.parametrize("governor, problem", [
    (PerPhase(decode="3 GHz"), "governor PerPhase: clock: 3000 MHz cannot be set on H200 SXM"),
    (PerPhase(decode_cap="800 W"), "governor PerPhase: cap: 800 W cannot be kept by H200 SXM"),
])
def test_answers_that_cannot_be_set_are_told(governor, problem):
    with pytest.raises(ConfigError, match=problem):
        Supervised(H200, FREE, governor).setting(Batch.of((1, 5)), StepCost.of([]))


def test_an_answer_that_is_no_setting_is_told():
    class Wrong:
        def setting(self, batch, timeline, gpu):
            return 500.0

    with pytest.raises(ConfigError, match=r"governor Wrong: answers 500.0, which is no ksim.cost.energy.Setting"):
        Supervised(H200, FREE, Wrong()).setting(Batch.of((1, 5)), StepCost.of([]))

"""Rounded steps: what equal batches cost is priced once, pass by pass."""

from benchmarks.research.silicon.rounding import rounded
from ksim.cost.step import Passes
from ksim.flow.batch import Batch
from ksim.scenario.scenario import Scenario
from tests.scenario.tables import TABLE

CONFIG = {"method": "eagle3", "model": "eagle3-llama-3.1-8b", "num_speculative_tokens": 2,
          "acceptance": {"name": "geometric", "rate": 0.8}}


def test_steps_with_drafts_are_rounded_in_all_their_passes() -> None:
    scenario = Scenario.of({**TABLE, "serve": {"max_model_len": 8192, "speculative_config": CONFIG}})
    (pool,) = rounded(scenario).pools
    (timer,) = pool.deployment.timers()
    assert isinstance(timer, Passes)
    even, uneven = Batch.of((3, 1024), (3, 1024), width=3), Batch.of((3, 1020), (3, 1025), width=3)
    assert timer.step_cost(uneven) == timer.step_cost(even)
    assert timer.step_cost(even).seconds > timer.step_cost(Batch.of((1, 1024), (1, 1024))).seconds
    plain = Batch.of((1, 1024), (3, 1024), width=3)  # of unequal tokens, which is not rounded
    assert timer.step_cost(plain).seconds != timer.step_cost(even).seconds
    assert timer.summarize(uneven).seconds == timer.summarize(even).seconds

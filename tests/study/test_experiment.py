"""One run of a study: what ran before changes no bit of it, and every study shows a replication the same requests."""

import numpy as np
import pytest

import ksim
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import simulate
from ksim.study import experiment
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Criteria, RateRun, runnable
from ksim.study.experiment import play
from ksim.study.plan import replication_seed
from tests.study.capacity.loads import batching

#: What runs before, and shares its prices with the run where it may.
BEFORE = [{"serve.max_num_seqs": 4}, {"serve.max_num_batched_tokens": 256}, {"gpu": "l40s"},
          {"serve.enforce_eager": True}, {"kernel_errors": 1}, {"serve.kv_cache_dtype": "fp8"}]
#: Runs of which each part of a price could be another's by mistake.
RUNS = [
    {}, {"serve.max_num_seqs": 12}, {"gpu": "l40s"}, {"serve.enforce_eager": True}, {"kernel_errors": 1},
    {"serve.kv_cache_dtype": "fp8"}, {"oracle": "roofline"}, {"host": "sglang"}, {"serve.data_parallel_size": 2},
    {"gpu": "h100", "serve.tensor_parallel_size": 2}, {"gpu": "h100", "serve.pipeline_parallel_size": 2},
    {"gpu": "h100", "serve.tensor_parallel_size": 2, "serve.overlap_stages": 2, "serve.overlap_sms": 8},
    {"serve.speculative_config": {"method": "ngram", "num_speculative_tokens": 2,
                                  "acceptance": {"name": "geometric", "rate": 0.8}}},
    {"gpu": {"name": "l4", "bandwidth": "400 GB/s"}, "oracle": "learned"}, {"serve.cpu_offload_gb": 1}]


def small(**changes):
    """A load of few requests on one GPU."""
    return batching().with_values({"workload.synthetic.count": 12, "workload.synthetic.arrivals.rate": 20.0, **changes})


@pytest.mark.parametrize("settings", RUNS, ids=str)
def test_a_run_is_the_same_to_the_last_bit_whatever_ran_before(settings):
    scenario = small(**settings)
    for changes in ({}, *BEFORE, settings):
        play(small(**changes).with_values({"seed": 1}))
    warm, cold = play(scenario), simulate(scenario)
    assert warm.summary == cold.summary
    np.testing.assert_array_equal(warm.history.steps.joules, cold.history.steps.joules)
    np.testing.assert_array_equal(warm.history.requests.last_token, cold.history.requests.last_token)


def test_runs_that_differ_in_what_prices_depend_on_share_none():
    timers = [experiment.warm(Fleet.of(small(**settings))).pools[0].deployment.timers()[0]
              for settings in ({}, {"serve.max_num_seqs": 4}, {"gpu": "l40s"}, {"kernel_errors": 1}, {"seed": 2},
                               {"nodes": 3})]
    plain, fewer, other, erring, again, larger = (timer._plans for timer in timers)
    assert plain is fewer is again is larger
    assert len({id(plans) for plans in (plain, other, erring)}) == 3


def test_no_more_prices_are_kept_than_a_few_deployments_need(monkeypatch):
    monkeypatch.setattr(experiment, "_KEPT", 2)
    for gpu in ("l4", "l40s", "h100"):
        play(small(gpu=gpu))
    assert len(experiment._timers) == 2


def test_all_studies_show_a_replication_the_same_requests():
    """`capacity` at the scenario's own rate plays the requests of `sweep`, and replication 0 those of `ksim run`."""
    scenario = small()
    swept = ksim.sweep(scenario, {"serve.max_num_seqs": [32]}, repeat=3, jobs=1)
    criteria = Criteria((Target.parse("ttft:p90:1s"),), requests=12, seed=scenario.seed)
    for row in swept.rows:
        asked = runnable(criteria, RateRun(scenario, 20.0, row.replication))
        assert asked.seed == row.seed == replication_seed(scenario.seed, row.replication)
        requests = asked.workload.requests(asked.seed)
        assert [*requests] == [*scenario.workload.requests(row.seed)]
        assert row.numbers["total_input_tokens"] == simulate(asked).summary["total_input_tokens"]
    assert swept.rows[0].seed == scenario.seed

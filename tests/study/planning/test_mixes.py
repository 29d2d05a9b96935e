"""Fleets of two kinds of GPUs: which there are, and that they carry what their estimates say."""

import pytest
from attrs import evolve

import ksim
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.study.capacity.traffic import gpus_of
from ksim.study.experiment import play
from ksim.study.planning.ask import PlanStudy
from ksim.study.planning.candidates import candidates
from ksim.study.planning.fleets import grown, name_of
from ksim.study.planning.options import options
from ksim.study.planning.race import set_up

SCENARIO = Scenario.of({
    "model": "llama-3.1-8b", "gpu": "h100", "serve": {"max_model_len": 2048},
    "workload": {"synthetic": {"count": 800, "arrivals": {"process": "poisson", "rate": 30.0},
                               "prompt": {"kind": "fixed", "value": 1000}, "output": {"kind": "fixed", "value": 60}}}})
FEW = {"engine": ["vllm-0.33"], "serve.tensor_parallel_size": [1], "serve.max_num_batched_tokens": [8192],
       "serve.max_num_seqs": [256], "serve.quantization": ["fp8"], "serve.kv_cache_dtype": ["auto"]}
SLO = ["ttft:p99:2s", "tpot:p99:80ms", "tpot:mean:60ms"]


def asked(rate, *gpus):
    return PlanStudy.of(SCENARIO, rate, SLO, gpus, (), FEW, requests=500, replications=3, seed=None)


def made(rate, *gpus):
    study = asked(rate, *gpus)
    return study, [*options(study.question, candidates(study.scenario, study.kinds, study.over).families)]


def of_two(found, role):
    """The options on two kinds of GPUs that have a pool of this *role*."""
    return [one for one in found if "+" in one.gpu and role in {
        pool["role"] for pool in one.settings["pools"].values()}]


@pytest.fixture(scope="module")
def mixed():
    """Too many requests for the GPUs of either kind that there are."""
    return made(80.0, "h100:1=2.5", "l40s:5=0.9")


def test_a_mix_is_an_option_where_it_costs_less_than_either_kind(mixed):
    _, found = mixed
    both = of_two(found, "both")
    assert len(both) == 1 and both[0].settings["router"] == "least_outstanding"
    assert not [one for one in found if "+" not in one.gpu and "pools" not in one.settings], "too few of either"
    for more in (made(80.0, "h100=2.5", "l40s=0.9")[1], made(5.0, "h100:1=2.5", "l40s:5=0.9")[1]):
        cheapest = min(one.costs["usd"] for one in more if "+" not in one.gpu and "pools" not in one.settings)
        assert all(one.costs["usd"] < cheapest for one in of_two(more, "both"))


def test_engines_that_prefill_may_have_other_gpus(mixed):
    study, found = mixed
    apart = of_two(found, "prefill")
    assert apart
    pools = apart[0].settings["pools"]
    assert {pool["gpu"] for pool in pools.values()} == {"h100", "l40s"}
    setup = set_up(study.scenario, apart[0])
    assert setup.gpus == apart[0].gpus == sum(pool["replicas"] for pool in pools.values())
    dollars = sum(pool["replicas"] * {"h100": 2.5, "l40s": 0.9}[pool["gpu"]] for pool in pools.values())
    assert apart[0].costs["usd"] == pytest.approx(dollars)


def test_a_mix_carries_the_load_in_a_simulation(mixed):
    study, found = mixed
    option, = of_two(found, "both")
    arrivals = {"workload.synthetic.arrivals.rate": 80.0}
    summary = play(set_up(study.scenario, option).scenario.with_values(arrivals)).summary
    tpot = next(value for target, value in option.values.items() if target.metric == "tpot" and target.share is None)
    assert summary["mean_tpot_ms"] == pytest.approx(1e3 * tpot, rel=0.3)
    assert summary["p99_ttft_ms"] < 2000 and summary["p99_tpot_ms"] < 80


def test_a_fleet_grows_by_an_engine_of_its_pool(mixed):
    study, found = mixed
    for option in (of_two(found, "both")[0], of_two(found, "prefill")[0]):
        more = grown(option.settings, "prefill")
        wider = set_up(study.scenario, evolve(option, settings=more))
        assert wider.gpus == option.gpus + 1
        assert name_of(more) != option.name


def test_a_plan_buys_the_cheapest_mix():
    found = ksim.plan(SCENARIO, 80.0, ["ttft:mean:2s", "tpot:mean:60ms"], ["h100:1=2.5", "l40s:5=0.9"], over=FEW,
                      requests=100, replications=2, finalists=1)
    assert found.best is not None and found.best.setup.settings["pools"]
    assert {pool["gpu"] for pool in found.best.setup.settings["pools"].values()} == {"h100", "l40s"}
    assert " on h100" in found.sentence and " on l40s" in found.sentence
    assert found.best.costs["usd"] == pytest.approx(sum(
        pool["replicas"] * {"h100": 2.5, "l40s": 0.9}[pool["gpu"]] for pool in
        found.best.setup.settings["pools"].values()))
    assert gpus_of(Fleet.of(found.best_scenario)) == found.best.gpus

"""A policy is checked in one line; what is found runs with `ksim run`; the shipped ones pass."""

import builtins
import importlib
import sys

import pytest

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.scheduling.scheduler import Scheduler
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.simulation.simulate import simulate
from ksim.testing import PolicyFault, check_policy, check_scheduler
from ksim.testing.policy import EXAMPLES
from tests.properties import share
from tests.testing.mutants.policies import ByRequestId, PassesOverLong

#: Under these, some may wait as long as others come.
STARVING = {"priority", "shortest_prompt_first", "shortest_remaining", "srpt_predicted", "longest_prefix_first",
            "earliest_deadline_first"}


@pytest.mark.parametrize("name", catalog.names("scheduling.policies"))
def test_the_policies_of_ksim_pass(name):
    check_policy(name, starves=name in STARVING, max_examples=share(40))


def advises(name):
    """Whether a policy has an order or a victim only, as SGLang's scheduler asks for."""
    kind = catalog.find("scheduling.policies", name)
    return not hasattr(kind, "propose") and not hasattr(kind, "queue")


@pytest.mark.parametrize("name", [*filter(advises, catalog.names("scheduling.policies"))])
def test_policies_that_only_advise_pass_on_sglangs_scheduler(name):
    check_policy(name, engine="sglang", max_examples=share(40))


@pytest.mark.parametrize("name", ["stall_free", "fair_share"])
def test_policies_that_propose_or_have_a_queue_are_refused_on_sglangs_scheduler(name):
    with pytest.raises(ConfigError, match="SGLang's scheduler asks only for an order and a victim"):
        check_policy(name, engine="sglang")


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="no engine named trt; there are vllm, sglang"):
        check_policy("fcfs", engine="trt")


class Attached:
    """Longest cached prefix first, by the cache that it was attached to."""

    def attach(self, cache):
        self.cache = cache

    def order(self, job):
        return -self.cache.find_prefix(job.block_table, job.num_tokens).tokens, job.number


def test_a_policy_may_look_at_sglangs_cache():
    check_policy(Attached, engine="sglang", max_examples=share(100))


@pytest.mark.parametrize("scheduler", [Scheduler, SglangScheduler])
def test_the_schedulers_of_ksim_pass_by_default(scheduler):
    check_scheduler(scheduler, max_examples=share(EXAMPLES))


@pytest.mark.slow
def test_the_counter_example_is_a_scenario_that_runs(tmp_path):
    file = tmp_path / "fault.toml"
    with pytest.raises(PolicyFault, match="ByRequestId breaks names_do_not_matter in step") as found:
        check_policy(ByRequestId, starves=True, invariants=["names_do_not_matter"], shrink=False, write_to=file)
    assert found.value.scenario in str(found.value)
    result = simulate(Scenario.read(file))
    assert len(list(result.log.events)) > len(found.value.case.arrivals)


@pytest.mark.slow
def test_two_counter_examples_in_one_folder_keep_their_own_traces(tmp_path):
    traces = {}
    for name, policy, invariant in (("first", ByRequestId, "names_do_not_matter"),
                                    ("second", PassesOverLong, "no_idle_step")):
        with pytest.raises(PolicyFault) as found:
            check_policy(policy, starves=True, invariants=[invariant], shrink=False, write_to=tmp_path / f"{name}.toml")
        traces[name] = found.value.trace
        assert f'path = "{found.value.trace_name}"' in (tmp_path / f"{name}.toml").read_text()
    assert traces["first"] != traces["second"]
    assert {path.stem: path.read_text() for path in tmp_path.iterdir() if path.suffix != ".toml"} == traces


def test_a_counter_example_is_the_same_each_time():
    texts = set()
    for _ in range(2):
        with pytest.raises(PolicyFault) as found:
            check_policy(PassesOverLong, starves=True, invariants=["no_idle_step"], shrink=False)
        texts.add(str(found.value))
    assert len(texts) == 1


@pytest.mark.slow
def test_a_counter_example_is_small(monkeypatch):
    monkeypatch.setattr("ksim.testing.policy.SHRINKS", 25)
    with pytest.raises(PolicyFault) as found:
        check_policy(PassesOverLong, starves=True, invariants=["no_idle_step"])
    assert len(found.value.case.arrivals) == 1


def test_a_name_of_no_invariant_is_refused():
    with pytest.raises(ValueError, match="no invariants named speed; there are token_budget, "):
        check_policy("fcfs", invariants=["speed"])


def test_without_hypothesis_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def lacking(name, *rest, **options):
        if name == "hypothesis":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.delitem(sys.modules, "ksim.testing")
    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ImportError, match=r"ksim.testing needs Hypothesis: pip install 'ksim-llm\[testing\]'"):
        importlib.import_module("ksim.testing")

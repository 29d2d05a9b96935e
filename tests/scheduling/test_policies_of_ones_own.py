"""A policy or an admission of one's own: named in a scenario, with its options, and named again when it errs."""

from textwrap import dedent
from typing import Any

import pytest

from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.scenario import Scenario
from ksim.scheduling.policies import ALL
from ksim.scheduling.queues import ArrivalQueue
from ksim.simulation.simulate import simulate
from ksim.testing.loop import loop
from tests.specs.hosts import as_toml, host

MODULE = dedent('''
    from attrs import frozen

    @frozen
    class AtMost:
        """A policy's option, and an admission's: how many may run."""
        count: int = 2
        def admits(self, job, running, cache):
            return len(running) < self.count

    class Never:
        def admits(self, job, running, cache):
            return False

    def never(job, running, cache):
        return False

    class Longest:
        def order(self, job):
            return -job.request.prompt
''')


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Run twelve requests with settings that may name what is in a module of one's own."""
    (tmp_path / "own_admissions.py").write_text(MODULE)
    (tmp_path / "free.toml").write_text(as_toml(host()))  # so that all come at once
    monkeypatch.syspath_prepend(tmp_path)

    def run(**serve: Any):
        synthetic = {"arrivals": {"process": "burst"}, "prompt": {"kind": "uniform", "low": 10, "high": 400},
                     "output": {"kind": "fixed", "value": 5}, "count": 12}
        return simulate(Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "serve": serve,
                                     "host": str(tmp_path / "free.toml"), "workload": {"synthetic": synthetic}}))

    return run


def test_an_admission_is_named_in_a_scenario_with_its_options(outside):
    steps = outside(admission={"name": "own_admissions:AtMost", "count": 3}).steps
    assert max(steps["running"].to_pylist()) == 3
    assert 'admission = "always"' in outside().scenario


def test_what_does_not_exist_is_answered_with_the_nearest(outside):
    with pytest.raises(KsimError, match="no admission named 'reserve_outputs'; did you mean 'reserve_output'"):
        outside(admission="reserve_outputs")


@pytest.mark.parametrize("name", ["Never", "never"])
def test_one_that_refuses_for_ever_ends_the_run(outside, name):
    with pytest.raises(KsimError, match="schedules nothing at .* with nothing in flight, 12 requests waiting"):
        outside(admission=f"own_admissions:{name}")


def test_a_policy_is_named_in_a_scenario(outside):
    table = outside(scheduling_policy="own_admissions:Longest", max_num_seqs=1).requests
    prompts = [prompt for _, prompt in sorted(zip(table["ttft_s"].to_pylist(), table["prompt_tokens"].to_pylist(),
                                                  strict=True))]
    assert prompts == sorted(prompts, reverse=True)


class Raises:
    """Raises where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def act(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError("alas")


class Proposing(Raises):
    def propose(self, waiting, running, now):
        self.act("begin")
        for job in [*running, *waiting]:
            yield job, ALL
            self.act("middle")


class Eager(Raises):
    def propose(self, waiting, running, now):
        self.act("begin")
        return [(job, ALL) for job in [*running, *waiting]]


class Ordering(Raises):
    def order(self, job):
        self.act("order")
        return job.number

    def victim(self, running):
        self.act("victim")
        return running[0]


@pytest.mark.parametrize(("policy", "step"), [
    (Proposing("begin"), 1), (Proposing("middle"), 1), (Eager("begin"), 1), (Ordering("victim"), 2)])
def test_a_policy_that_raises_is_named_with_the_step(policy, step):
    engine = loop(policy=policy, blocks=4)
    engine.add(7)
    engine.add(8)
    with pytest.raises(ConfigError, match=f"policy {type(policy).__name__}: raises RuntimeError: alas, in step {step}"):
        engine.run()


def test_an_order_that_raises_is_named_too():
    with pytest.raises(ConfigError, match="policy Ordering: raises RuntimeError: alas"):
        loop(policy=Ordering("order")).add(7)


def test_a_policy_may_bring_a_queue_of_its_own():
    class LastComeFirst(ArrivalQueue):
        add = ArrivalQueue.put_back

    class Own:
        queue = LastComeFirst

    engine = loop(policy=Own())
    a, b, c = (engine.add(4) for _ in range(3))
    assert list(engine.turn()) == [c, b, a]

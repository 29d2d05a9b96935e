"""A policy of one's own: any of three members will do, and what breaks the contract is named."""

from textwrap import dedent
from typing import Any

import pytest

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.testing.loop import Loop, loop

POLICIES = dedent('''
    from ksim.scheduling.policies import ALL

    class Longest:
        """Only an order: the longest prompt first."""
        def order(self, job):
            return -job.num_tokens

    class First:
        """Only a victim: the first admitted."""
        def victim(self, running):
            return running[0]

    class Lazy:
        """Only a proposal: two tokens a step for prompts, one job at a time."""
        def propose(self, waiting, running, now):
            jobs = [*running] or [*waiting]
            return [(jobs[0], 2)] if jobs else []

    class Twice:
        def propose(self, waiting, running, now):
            for job in [*running, *waiting]:
                yield job, 2
                yield job, 2

    class Nothing:
        def propose(self, waiting, running, now):
            return [(job, 0) for job in waiting]

    class Half:
        def propose(self, waiting, running, now):
            return [(job, 1.5) for job in waiting]

    class Bare:
        def propose(self, waiting, running, now):
            return list(waiting)

    class Silent:
        def propose(self, waiting, running, now):
            pass

    class Faithful:
        """Goes on with those it saw first, whatever became of them."""
        def __init__(self):
            self.seen = []
        def propose(self, waiting, running, now):
            self.seen = self.seen or list(waiting)
            return [(job, ALL) for job in self.seen]

    class Merciless:
        """Chooses one that was preempted before."""
        def __init__(self):
            self.chosen = None
        def victim(self, running):
            self.chosen = self.chosen or running[-1]
            return self.chosen

    class Merciful:
        def victim(self, running):
            return None
''')


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Make a loop with one of the policies above, which are in a package of their own."""
    (tmp_path / "own_policies").mkdir()
    (tmp_path / "own_policies" / "some.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, **limits: Any) -> Loop:
        return loop(policy=catalog.find("scheduling.policies", f"own_policies.some:{name}")(), **limits)

    return make


def test_an_order_is_enough(outside):
    engine = outside("Longest")
    a, b, c = engine.add(5), engine.add(9), engine.add(7)
    assert list(engine.turn()) == [b, c, a]


def test_a_victim_is_enough(outside):
    engine = outside("First", blocks=4)
    a, b = engine.add(7), engine.add(8)
    engine.turn()
    assert engine.turn() == {b: 1}
    assert engine.last_schedule.preempted == [a]


def test_a_proposal_is_enough(outside):
    engine = outside("Lazy")
    a, b = engine.add(5, output=2), engine.add(5, output=2)
    assert [engine.turn() for _ in range(5)] == [{a: 2}, {a: 2}, {a: 1}, {a: 1}, {b: 2}]


@pytest.mark.parametrize(("name", "message"), [
    ("Twice", "policy Twice: proposes request 0 twice, in step 1"),
    ("Nothing", "policy Nothing: wishes 0 tokens for request 0, not a whole number from 1 on, in step 1"),
    ("Half", "policy Half: wishes 1.5 tokens for request 0, not a whole number from 1 on, in step 1"),
    ("Bare", "policy Bare: proposes request 0, not pairs of a job and the most tokens it should compute, in step 1"),
    ("Silent", "policy Silent: proposes None, not pairs of a job and the most tokens it should compute, in step 1"),
    ("Faithful", "policy Faithful: proposes request 0, which is finished, in step 3"),
])
def test_a_proposal_that_makes_no_sense_is_named(outside, name, message):
    engine = outside(name)
    engine.add(5, output=2)
    engine.add(5, output=4)
    with pytest.raises(ConfigError, match=message):
        engine.run()


def test_another_engines_job_is_named(outside):
    policy = outside("Faithful").scheduler.policy
    one, other = loop(policy=policy), loop(policy=policy)
    for engine in (one, other):
        engine.add(5)
        engine.add(5)
    one.turn()
    with pytest.raises(ConfigError, match="policy Faithful: proposes request 0, which runs elsewhere, in step 1"):
        other.turn()


@pytest.mark.parametrize(("name", "message"), [
    ("Merciless", "policy Merciless: chooses request 2 as its victim, which is not running, in step 6"),
    ("Merciful", "policy Merciful: chooses None as its victim, which is not running, in step 2"),
])
def test_a_victim_that_does_not_run_is_named(outside, name, message):
    engine = outside(name, blocks=4, scheduler_reserve_full_isl=False)
    for _ in range(3):
        engine.add(4, output=12)
    with pytest.raises(ConfigError, match=message):
        engine.run()

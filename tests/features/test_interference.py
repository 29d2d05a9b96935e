"""Processes of one's own, which listen to a run and interfere."""

import pytest

from ksim.flow.events import WAITS, Finished, RanksMet, Stepped
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate

#: When the processes below interfere.
MOMENT = 0.05


def watch(env, fleet, log):
    """Look at what happens, every millisecond, for ever."""
    while True:
        yield env.timeout(1e-3)
        assert len(fleet.engines) == 1 and env.now >= 0


def throttle(env, fleet, log):
    yield env.timeout(MOMENT)
    fleet.slow(1, speed=0.5)


def narrow(env, fleet, log):
    yield env.timeout(MOMENT)
    fleet.narrow(0, share=0.25)


def late(env, fleet, log):
    yield env.timeout(MOMENT)
    fleet.delay(1, seconds=2e-3)


def send(env, fleet, log):
    yield env.timeout(MOMENT)
    fleet.send(prompt=64, output=3)


def raises(env, fleet, log):
    yield env.timeout(MOMENT)
    raise ValueError("nobody is there")


def far(env, fleet, log):
    yield env.timeout(MOMENT)
    fleet.slow(7, speed=0.5)


def stops(env, fleet, log):
    yield env.timeout(MOMENT)
    fleet.slow(0, speed=0)


def function(env, fleet, log):
    return fleet


def run(*processes: str):
    return simulate(Scenario.of({
        "model": "llama-3.2-1b", "gpu": "h200", "detail": "rank",
        "serve": {"tensor_parallel_size": 2, "max_model_len": 2048},
        "ranks": {"processes": [f"{__name__}:{name}" for name in processes]},
        "workload": {"synthetic": {"arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 100},
                                   "output": {"kind": "fixed", "value": 60}, "count": 4}}}))


def seconds(result) -> tuple[float, float]:
    """The mean seconds of decodes that end before the moment, and of those that begin after it."""
    steps = [step for step in result.log.of(Stepped) if not step.batch.prompts]
    early, late = ([step.end - step.start for step in steps if here(step)]
                   for here in (lambda step: step.end <= MOMENT, lambda step: step.start >= MOMENT))
    return sum(early) / len(early), sum(late) / len(late)


def test_who_only_looks_changes_nothing_and_ends_with_the_run():
    alone, watched = ([finished.time for finished in run(*names).log.of(Finished)] for names in ((), ("watch",)))
    assert watched == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("name", ["throttle", "narrow", "late"])
def test_a_gpu_that_is_slowed_makes_steps_longer_from_then_on(name):
    plain, slowed = seconds(run()), seconds(run(name))
    assert slowed[0] == pytest.approx(plain[0], rel=1e-2)
    assert slowed[1] > 1.01 * plain[1]


def test_what_a_process_slows_is_what_others_wait_for():
    met = [*run("throttle").log.of(RanksMet)][-1]
    fast, slow = met.gpus.tolist().index(0), met.gpus.tolist().index(1)
    assert met.busy[slow] == pytest.approx(2 * met.busy[fast], rel=1e-6)
    assert met.waits.sum(axis=0)[slow] == pytest.approx(0, abs=1e-9)
    assert met.waits[WAITS.index("clock"), fast] > 0.1 * met.busy[fast]


def test_replicas_run_in_one_process_where_a_process_may_look_at_all():
    table = {"model": "llama-3.2-1b", "gpu": "h200", "detail": "rank", "serve": {"data_parallel_size": 2},
             "ranks": {"processes": [f"{__name__}:late"]}, "workload": {"synthetic": {
                 "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 9},
                 "output": {"kind": "fixed", "value": 2}, "count": 2}}}
    (remark,) = (remark for remark in simulate(Scenario.of(table), jobs=2).remarks if "one process" in remark)
    assert "processes of your own may look at all engines" in remark


def test_a_request_that_a_process_sends_is_served():
    assert run("send").summary["completed"] == run().summary["completed"] + 1


@pytest.mark.parametrize(("name", "says"), [
    ("raises", r"process .*:raises raised ValueError at 0\.05 s: nobody is there"),
    ("far", r"process .*:far: gpu: no engine runs on GPU 7; engines have GPUs 0 to 1"),
    ("stops", r"process .*:stops: speed: 0 is not above 0")])
def test_a_process_that_goes_wrong_is_named(name, says):
    with pytest.raises(KsimError, match=says):
        run(name)


def test_a_function_that_waits_for_nothing_is_no_process():
    with pytest.raises(ConfigError, match=r":function is no generator; it has to wait for an event with yield"):
        run("function")

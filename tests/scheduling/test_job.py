"""A job's account: tokens to go, and the steps from which its tokens came."""

import pytest

from ksim.flow.request import Request
from ksim.scheduling.job import Job, Run


def job(prompt: int = 10, output: int = 5) -> Job:
    return Job.of(Request(0, 0.0, prompt, output), 0, 16)


def test_backlog_counts_tokens_and_placeholders_that_are_not_computed():
    fresh = job()
    assert (fresh.backlog, fresh.sampled) == (10, 0)
    fresh.num_computed_tokens, fresh.num_tokens, fresh.num_output_placeholders = 10, 11, 1
    assert (fresh.backlog, fresh.sampled) == (2, 1)


def test_by_default_the_scheduler_foresees_the_end():
    assert (job().output, job().limit) == (5, 5)


def test_an_end_by_stop_token_comes_before_the_limit():
    stopped = Job.of(Request(0, 0.0, 10, 5), 0, 16, output=3, limit=9)
    assert (stopped.output, stopped.limit) == (3, 9)


@pytest.mark.parametrize(("steps", "runs"), [
    ([4], [Run(4, 4, 0)]),
    ([4, 5, 6], [Run(4, 6, 1)]),
    ([4, 6, 8], [Run(4, 8, 2)]),
    ([4, 6, 7, 8], [Run(4, 6, 2), Run(7, 8, 1)]),
    ([0, 9, 10], [Run(0, 9, 9), Run(10, 10, 0)]),
])
def test_tokens_at_equal_distances_are_one_run(steps, runs):
    emitter = job()
    for step in steps:
        emitter.emit(1, step)
    assert emitter.emitted == runs


def test_tokens_of_many_steps_can_be_noted_at_once():
    emitter = job()
    emitter.emit(1, 4)
    emitter.emit(3, 7)
    emitter.emit(2, 20)
    assert emitter.emitted == [Run(4, 7, 1), Run(19, 20, 1)]

import numpy as np
import pytest

from ksim.flow.events import Admitted, Arrived, Emitted, Finished, Preempted, Stepped
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.results.history import History
from ksim.results.series import Series, all_static_power, kv_usage, power, running, waiting

from . import by_hand, fabricate


def test_changes_at_one_time_are_one_change():
    series = Series.of_changes(np.array([2.0, 1.0, 2.0, np.nan]), np.array([1.0, 3.0, -2.0, 9.0]))
    assert (series.times.tolist(), series.values.tolist()) == ([1.0, 2.0], [3.0, 2.0])


def test_integrals_means_and_values():
    series = Series(np.array([1.0, 3.0]), np.array([2.0, 0.5]))
    assert series.integral(np.array([0.0, 2.0, 3.0, 5.0])).tolist() == [0.0, 2.0, 4.0, 5.0]
    assert series.means(np.array([0.0, 2.0, 4.0])).tolist() == [1.0, 1.25]
    assert series.at(np.array([0.5, 1.0, 9.0])).tolist() == [0.0, 2.0, 0.5]


def test_an_empty_series_is_zero():
    nothing = Series(np.zeros(0), np.zeros(0))
    assert nothing.means(np.array([0.0, 1.0])).tolist() == nothing.at(np.array([1.0])).tolist() == [0.0]
    assert nothing.peak == 0.0


def test_power_of_the_small_log_is_static_outside_of_steps():
    watts = power(History(by_hand.small()))
    assert watts.at(np.array([0.5, 1.75, 2.25, 2.75, 4.25])) == pytest.approx([200, 320, 200, 320, 200])


def test_gpus_of_the_small_log_sleep_between_steps():
    history = History(by_hand.sleepy())
    times = np.array([0.2, 0.5, 1.75, 2.2, 2.3, 2.75, 4.2, 4.4])
    assert power(history).at(times) == pytest.approx([200, 80, 320, 200, 80, 320, 200, 80])
    assert all_static_power(history).at(times) == pytest.approx([200, 80, 200, 200, 80, 200, 200, 80])
    assert power(history).integral(np.array([4.5]))[0] == pytest.approx(1080 - 2.0 * 120)


def test_cache_of_the_small_log_is_empty_when_idle():
    usage = kv_usage(History(by_hand.small()))
    assert usage.at(np.array([0.5, 1.25, 2.1, 3.0, 3.9, 4.2])) == pytest.approx([0, 0.01, 0.01, 0.03, 0.02, 0])


def test_queue_and_batch_empty_in_the_end():
    history = History(fabricate.log(count=80, rate=400, preempt_every=5, seats=4))
    assert waiting(history).values[-1] == running(history).values[-1] == 0
    assert waiting(history).peak > 10 and running(history).peak == 4
    assert min(waiting(history).values) >= 0 and min(running(history).values) >= 0


def test_a_request_may_finish_while_it_waits_to_run_again():
    """With several batches in flight, the last token of a preempted request may still be on its way."""
    step = next(by_hand.small().of(Stepped))
    log = Log([by_hand.ENGINE], [
        Arrived(1.0, Request(7, 1.0, 10, 1)), Admitted(1.0, 7, 4, 0, 10), Preempted(1.75, 7, 4), step,
        Emitted(2.25, 7, 4, 0, 0), Finished(2.25, 7, 4),
    ])
    assert waiting(History(log)).at(np.array([1.5, 2.0, 2.5])).tolist() == [0, 1, 0]
    assert running(History(log)).at(np.array([1.5, 2.0, 2.5])).tolist() == [1, 0, 0]

import pytest

from ksim.results.history import History
from ksim.results.saturation import saturation

from . import fabricate


@pytest.mark.parametrize(("rate", "seats", "saturated"), [(12.0, 64, False), (60.0, 2, True), (10.0, 2, False)])
def test_a_queue_that_only_grows_is_noticed(rate, seats, saturated):
    found = saturation(History(fabricate.log(count=150, rate=rate, seats=seats, preempt_every=0)))
    assert found["saturated"] is saturated


def test_requests_that_all_come_at_once_wait_by_design():
    found = saturation(History(fabricate.log(count=100, rate=1e6, seats=4)))
    assert found["waiting_at_last_arrival"] > 50
    assert found["saturated"] is False

"""The gateway before the router, with flow controls and clients of a few lines; times worked out by hand."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from attrs import define, field

from ksim.cluster.flow_controls.fair_queue import FairQueue
from ksim.cluster.flow_controls.predicted_ttft import PredictedTtft
from ksim.cluster.flow_controls.queue_limit import QueueLimit
from ksim.cluster.gateway import Gateway
from ksim.cluster.routers import Refusal
from ksim.engine.loop_times import Horizon
from ksim.flow.events import GONE_AFTER_REFUSAL, Arrived, Held, Refused, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.results.history import History
from ksim.results.metrics import aborted
from ksim.specs.settings import SignalSettings
from ksim.workload.replay import Retries
from tests.cluster.views import Millisecond, View


@define
class Doors:
    """Lets requests go while they are open, and has room for so many in the queue."""

    room: int = 100
    default_request_ttl: float = 60.0
    open: bool = True
    signals = ("metrics",)

    def refusal(self, request, engines, held, now):
        return "" if held < self.room else "full"

    def flow(self, request):
        return request.tenant

    def pick(self, heads):
        return min(heads, key=lambda flow: heads[flow].id)

    def ready(self, engines, now):
        return self.open

    def sent(self, request, engine_number, now):
        pass


@define
class Scene:
    """A gateway, and the requests that it let through, with their times."""

    control: object
    retries: Retries | None = None
    interval: float = 0.0
    refuses: bool = False
    env: Horizon = field(factory=Horizon)
    log: Log = field(factory=Log)
    sent: list = field(factory=list)
    gateway: Gateway = field(init=False)

    def __attrs_post_init__(self):
        self.gateway = Gateway(self.env, self.log, self.control, self.retries, seed=3)
        sight = SimpleNamespace(refresh=lambda now: None, views=[], complete=True)
        self.gateway.open(self.forward, sight, SignalSettings(self.interval))

    def forward(self, request, done, timely):
        if self.refuses:
            raise Refusal("the router says no")
        self.sent.append((request.id, pytest.approx(self.env.now)))
        return 0

    def come(self, *requests):
        for request in requests:
            self.at(request.arrival, lambda request=request: self.gateway.take(request, lambda: None, False))
        return self

    def at(self, moment, happening):
        self.env.timeout(moment).callbacks.append(lambda _: happening())
        return self

    def run(self):
        self.env.run()
        return self

    def told(self, kind):
        return [(event.request_id, pytest.approx(event.time)) for event in self.log.of(kind)]


def request(number, arrival=0.0, tenant=""):
    return Request(number, arrival, prompt=100, output=10, tenant=tenant)


def test_open_doors_hold_nobody():
    scene = Scene(Doors()).come(request(0), request(1, 0.5)).run()
    assert scene.sent == [(0, 0.0), (1, 0.5)]
    assert not scene.told(Held)
    assert len(list(scene.log.of(Arrived))) == 2


def test_those_that_wait_go_one_a_millisecond():
    doors = Doors(open=False)
    scene = Scene(doors).come(*(request(number, 0.1) for number in range(3)))
    scene.at(0.2005, lambda: setattr(doors, "open", True)).run()
    assert [number for number, _ in scene.sent] == [0, 1, 2]
    first, second, third = (time.expected for _, time in scene.sent)
    assert 0.2005 <= first <= 0.2016
    assert (second - first, third - second) == (pytest.approx(1e-3), pytest.approx(1e-3))
    assert scene.told(Held) == scene.sent


def test_nobody_looks_before_the_next_scrape():
    """Scraped each 50 ms: doors that open at 0.12 s are seen open at 0.15 s."""
    doors = Doors(open=False)
    scene = Scene(doors, interval=0.05).come(request(0, 0.1)).at(0.12, lambda: setattr(doors, "open", True)).run()
    assert scene.sent == [(0, 0.15)]


def test_an_arrival_is_a_moment_to_send_the_first_of_the_queue():
    doors = Doors(open=False)
    scene = Scene(doors, interval=10.0).come(request(0, 0.1), request(1, 0.5))
    scene.at(0.3, lambda: setattr(doors, "open", True)).run()
    assert scene.sent == [(0, 0.5), (1, 0.501)]


def test_who_waits_too_long_or_finds_no_room_is_refused():
    scene = Scene(Doors(room=2, default_request_ttl=5.0, open=False)).come(
        request(0), request(1, 1.0), request(2, 2.0), request(3, 5.5)).run()
    assert scene.told(Rejected) == [(2, 2.0), (0, 5.0), (1, 6.0), (3, 10.5)]
    assert scene.told(Held) == [(0, 5.0), (1, 6.0), (3, 10.5)]
    assert not scene.sent


def test_a_client_comes_again_as_openai_python_does():
    """0.5 s, 1 s, 2 s, 4 s, 8 s, 8 s, each less up to a quarter."""
    scene = Scene(Doors(room=0), Retries(max_retries=6)).come(request(0)).run()
    times = [time.expected for _, time in scene.told(Refused)]
    for wait, (before, after) in zip((0.5, 1, 2, 4, 8, 8), pairwise(times), strict=True):
        assert 0.75 * wait <= after - before <= wait
    assert scene.told(Rejected) == [(0, times[-1])]
    assert [event.last for event in scene.log.of(Refused)] == [False] * 6 + [True]
    assert len(list(scene.log.of(Arrived))) == 1
    again = Scene(Doors(room=0), Retries(max_retries=6)).come(request(0)).run()
    assert again.told(Refused) == scene.told(Refused)


def test_without_jitter_waits_double_exactly():
    scene = Scene(Doors(room=0), Retries(2, jitter=0.0)).come(request(0)).run()
    assert scene.told(Refused) == [(0, 0.0), (0, 0.5), (0, 1.5)]


def test_a_router_may_refuse_too():
    scene = Scene(Doors(), Retries(1, jitter=0.0), refuses=True).come(request(0))
    scene.at(0.4, lambda: setattr(scene, "refuses", False)).run()
    assert [event.reason for event in scene.log.of(Refused)] == ["the router says no"]
    assert scene.sent == [(0, 0.5)]
    assert not scene.told(Rejected)


# Flow controls.


def test_saturation_is_the_fuller_of_queue_and_cache():
    """llm-d's utilization-detector: max(waiting / 5, usage / 0.8), averaged over the engines, below 1."""
    control = QueueLimit()
    assert control.saturation(View(0, 0, 0, waiting=4, kv_usage=0.2), 0.1) == pytest.approx(0.8)
    assert control.saturation(View(0, 0, 0, waiting=1, kv_usage=0.6), 0.1) == pytest.approx(0.75)
    assert control.ready([View(0, 0, 0, waiting=4), View(1, 0, 0, waiting=5)], 0.1)
    assert not control.ready([View(0, 0, 0, waiting=5), View(1, 0, 0, kv_usage=0.8)], 0.1)


def test_stale_metrics_count_as_full():
    assert not QueueLimit().ready([View(0, 0, 0)], 0.21)
    assert QueueLimit(metrics_staleness_threshold="1 s").ready([View(0, 0, 0)], 0.21)


def test_requests_under_way_may_count_as_queued():
    busy = View(0, 12, 0, waiting=2, running=4)
    assert QueueLimit().ready([busy], 0.0)
    assert not QueueLimit(in_flight_credit=True).ready([busy], 0.0)


def test_a_full_queue_is_no_bar_while_engines_are_free():
    control, free, full = QueueLimit(max_requests=0), [View(0, 0, 0)], [View(0, 0, 0, waiting=9)]
    assert not control.refusal(request(0), free, 0, 0.0)
    assert "0 requests wait at the gateway already" in control.refusal(request(0), full, 0, 0.0)


def test_tags_of_a_fair_queue():
    """Costs of 100 each: "big" with weight 3 has tags 33, 67, 100, 133, and "small" 100, 200; equal ones by number."""
    control = FairQueue(weights={"big": 3.0}, output_tokens=0)
    queues = {"small": [request(number, tenant="small") for number in (0, 1)],
              "big": [request(number, tenant="big") for number in (2, 3, 4, 5)]}
    order = []
    while any(queues.values()):
        flow = control.pick({name: queue[0] for name, queue in queues.items() if queue})
        order.append(queues[flow].pop(0).id)
    assert order in ([2, 3, 0, 4, 5, 1], [2, 3, 4, 0, 5, 1])


def test_who_comes_back_has_saved_nothing():
    control = FairQueue(output_tokens=0)
    for _ in range(5):
        control.pick({"a": request(0, tenant="a")})
    assert [control.pick({"a": request(0, tenant="a"), "b": request(1, tenant="b")}) for _ in range(4)] == [*"abab"]


def test_a_predicted_ttft_is_queue_and_prefill_on_the_best_engine():
    control = PredictedTtft(ttft_slo="310 ms")
    control.measured({0: Millisecond(), 1: Millisecond()})
    views = [View(0, 1, 0), View(1, 1, 0)]
    for number in range(4):
        assert not control.refusal(request(number), views, 0, 0.0)
        control.sent(request(number), number % 2, 0.0)
    assert not control.refusal(request(4), views, 0, 0.0)
    control.sent(request(4), 0, 0.0)
    assert not control.refusal(request(5), views, 0, 0.0)  # 0.3 s on engine 1
    control.sent(request(5), 1, 0.0)
    assert control.refusal(request(6), views, 0, 0.0) == "its predicted TTFT of 0.4 s breaks the target of 0.31 s"
    control.on_first_token(request(1), 1, 0.1)
    assert not control.refusal(request(6), views, 0, 0.1)


def test_it_needs_a_target():
    control = PredictedTtft()
    with pytest.raises(ConfigError, match="predicted_ttft has no target; set its ttft_slo, or slo.ttft"):
        control.aim(None, {})
    control.aim(0.5, {})
    assert control.ttft_slo == 0.5


def test_engines_that_only_decode_are_no_way_out():
    control = PredictedTtft(ttft_slo="310 ms")
    control.measured({0: Millisecond(), 1: Millisecond()})
    views = [View(0, 1, 0, role="prefill"), View(1, 1, 0, role="decode")]
    for number in range(3):
        assert not control.refusal(request(number), views, 0, 0.0)
        control.sent(request(number), 0, 0.0)
    assert control.refusal(request(3), views, 0, 0.0)


def test_a_client_that_goes_before_it_tries_again_does_not_come_back():
    scene, gone = Scene(Doors(room=0), Retries(max_retries=3, initial_delay="10 ms")), []
    scene.come(Request(0, 0.0, 10, 10))
    for moment in (1e-3, 2e-3):
        scene.at(moment, lambda: gone.append(scene.gateway.abort(0)))
    scene.env.run()
    assert gone == [True, False] and len([*scene.log.of(Refused)]) == 1 and not scene.sent
    assert [(event.time, event.reason) for event in scene.log.of(Rejected)] == [(1e-3, GONE_AFTER_REFUSAL)]
    requests = History(scene.log).requests
    assert requests.attempts.tolist() == [1] and aborted(requests).all()

"""llm-d's endpoint picker decides as its sources say (github.com/llm-d/llm-d-router, pkg/epp, October 2026)."""

from collections import Counter
from typing import Any

import pytest
from attrs import evolve

from ksim.cluster.llm_d.cycle import APPROXIMATE, IN_FLIGHT, PRECISE, Chance, Cycle, InFlightLoad, Match
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from tests.cluster.views import View


def asked(number: int = 0, group: str = "a", blocks: int = 4, **changes: Any) -> Request:
    """A request with a prompt of blocks of 64 tokens, which all of its group share."""
    chunks = [(group, place) for place in range(blocks)]
    return Request(number, 0.0, 64 * blocks, 10, chunks, 64, **changes)


def views(*changes: dict[str, Any]) -> list[View]:
    return [View(number, 0, 0, **table) for number, table in enumerate(changes)]


def cycle(match: Match | None = None, load: InFlightLoad | None = None, request: Request | None = None,
          now: float = 0.0) -> Cycle:
    made = Cycle(request or asked(), now, Chance(0))
    made.matches.update({APPROXIMATE: match or Match(4, 64), PRECISE: match or Match(4, 64)})
    made.loads[IN_FLIGHT] = load or InFlightLoad({}, {}, dict.fromkeys(range(9), 0))
    return made


def part(name: str, **options: Any) -> Any:
    return catalog.find("cluster.llm_d.parts", name.replace("-", "_"))(**options)


def router(**options: Any) -> Any:
    return plugin("cluster.routers", Choice("llm_d", options))


@pytest.mark.parametrize("name, states, scores", [
    ("queue-scorer", [{"waiting": 2}, {"waiting": 6}, {"waiting": 3}], [1.0, 0.0, 0.75]),
    ("queue-scorer", [{"waiting": 5}, {"waiting": 5}], [1.0, 1.0]),
    ("running-requests-size-scorer", [{"running": 10}, {"running": 0}, {"running": 5}], [0.0, 1.0, 0.5]),
    ("kv-cache-utilization-scorer", [{"kv_usage": 0.25}, {"kv_usage": 1.0}], [0.75, 0.0]),
    ("load-aware-scorer", [{"waiting": 0}, {"waiting": 64}, {"waiting": 500}], [0.5, 0.25, 0.0]),
])
def test_scores_of_metrics(name, states, scores):
    assert part(name).score(cycle(), views(*states)) == scores


def test_prefixes_score_by_the_share_of_blocks():
    """plugin.go: matched / total, and with prefixLengthWeight w also w * (tokens / maxModelLen)^2."""
    match, engines = Match(8, 64, {0: 6, 2: 8}), views({}, {}, {})
    assert part("prefix-cache-scorer").score(cycle(match), engines) == [0.75, 0.0, 1.0]
    weighted = part("prefix-cache-scorer", prefix_length_weight=0.5, max_model_len=1024)
    assert weighted.score(cycle(match), engines) == [0.5 * (384 / 1024) ** 2 + 0.375, 0.0, 0.5 * 0.25 + 0.5]


def test_precise_prefixes_weigh_tiers():
    """256 tokens on the GPU and 128 more in CPU memory of 512 in all: (4 + 2 * 0.8) / 8 blocks of 64."""
    producer = catalog.find("cluster.llm_d.parts", "precise_prefix_cache_producer")(PRECISE, 64)
    made = cycle(request=asked(blocks=8))
    producer.look(made, [View(0, 0, cached=256, tiers={"cpu": 128}), View(1, 0, cached=0)])
    assert part("precise-prefix-cache-scorer").score(made, views({}, {})) == [5.6 / 8, 0.0]
    assert made.matches[PRECISE].blocks == {0: 5}


def test_cold_requests_go_to_the_engine_that_has_had_none_for_longest():
    """no_hit_lru.go: never used first, in their order, then the oldest; half for all if anyone has a block."""
    scorer, engines = part("no-hit-lru-scorer"), views({}, {}, {})
    assert scorer.score(cycle(), engines) == [1.0, 0.5, 0.0]
    for number in (1, 0):
        scorer.sent(cycle(), number, "default")
    assert scorer.score(cycle(), engines) == [0.0, 0.5, 1.0]
    assert scorer.score(cycle(Match(4, 64, {2: 1})), engines) == [0.5, 0.5, 0.5]
    scorer.sent(cycle(Match(4, 64, {2: 1})), 1, "default")  # a hit changes no order
    assert scorer.score(cycle(), engines) == [0.0, 0.5, 1.0]
    assert scorer.score(cycle(), engines[:1]) == [1.0]


def test_active_requests():
    """active_request.go: (max - count) / max, 1 for the idle, and no more than maxBusyScore for others."""
    load, engines = InFlightLoad({0: 4, 1: 1}, {}, {}), views({}, {}, {})
    assert part("active-request-scorer").score(cycle(load=load), engines) == [0.0, 0.75, 1.0]
    gapped = part("active-request-scorer", idle_threshold=1, max_busy_score=0.5)
    assert gapped.score(cycle(load=evolve(load, requests={0: 4, 1: 1, 2: 2})), engines) == [0.0, 1.0, 0.25]


def test_token_load_counts_what_the_request_adds():
    load = InFlightLoad({}, {0: 300, 1: 2000}, {0: 100, 1: 0, 2: 500})
    scorer = part("token-load-scorer", queue_threshold_tokens=1000)
    assert scorer.score(cycle(load=load), views({}, {}, {})) == [0.6, 0.0, 0.5]


def test_a_session_goes_back_to_the_engine_of_its_last_answer():
    scorer, engines, turn = part("session-affinity-scorer"), views({}, {}), asked(session="s")
    assert scorer.score(cycle(request=turn), engines) == [0.0, 0.0]
    scorer.ended(turn, 1)  # somebody else's
    assert scorer.score(cycle(request=turn), engines) == [0.0, 0.0]
    scorer.sent(cycle(request=turn), 1, "default")
    scorer.ended(turn, 1)
    assert scorer.score(cycle(request=turn), engines) == [0.0, 1.0]
    assert scorer.score(cycle(request=asked()), engines) == [0.0, 0.0]


def test_lora_adapters():
    """lora_affinity.go: active 1, room 0.8, waiting 0.6, else 0."""
    scorer, mine = part("lora-affinity-scorer", max_loras=1), asked(adapter="x")
    engines = [View(number, 0, 0, adapters={"x": "disk" if number else "gpu"}) for number in range(4)]
    scorer.sent(cycle(request=mine), 2, "default")
    scorer.sent(cycle(request=asked(adapter="y")), 3, "default")
    assert scorer.score(cycle(request=mine), engines) == [1.0, 0.8, 0.6, 0.0]
    scorer.ended(asked(adapter="y"), 3)
    assert scorer.score(cycle(request=mine), engines) == [1.0, 0.8, 0.6, 0.8]


def kept(name: str, made: Cycle, engines: list[View], **options: Any) -> list[int]:
    return [engine.number for engine in part(name, **options).keep(made, engines)]


def test_filters_of_roles_and_queues():
    roles = views({"role": "prefill"}, {"role": "decode"}, {"role": "both"})
    assert kept("prefill-filter", cycle(), roles) == [0, 2] and kept("decode-filter", cycle(), roles) == [1, 2]
    queues = views({"waiting": 10, "kv_usage": 0.9}, {"waiting": 2, "kv_usage": 0.1}, {"waiting": 4, "kv_usage": 0.3})
    assert kept("low-queue-filter", cycle(), queues, threshold=4) == [1, 2]
    assert kept("least-queue-filter", cycle(), queues) == [1, 2]  # up to 2 + (10 - 2) // 3
    assert kept("least-kv-cache-filter", cycle(), queues) == [1, 2]  # up to 0.1 + 0.8 / 3
    load = InFlightLoad({0: 3, 1: 1}, {}, {})
    assert kept("active-request-filter", cycle(load=load), queues, max_requests=1) == [1, 2]
    busy = InFlightLoad(dict.fromkeys(range(3), 2), {}, {})
    assert kept("active-request-filter", cycle(load=busy), queues, max_requests=1, fallback_on_empty=True) == [0, 1, 2]


def test_the_detector_of_saturation_leaves_out_the_full_and_the_stale():
    """utilization/detector.go: queue below 5, KV below 0.8, metrics no older than 200 ms; all, if none is left."""
    engines = views({"waiting": 5, "scraped_at": 1.0}, {"kv_usage": 0.8, "scraped_at": 1.0}, {"scraped_at": 0.7},
                    {"waiting": 4, "kv_usage": 0.79, "scraped_at": 0.9})
    assert kept("utilization-detector", cycle(now=1.0), engines) == [3]
    assert kept("utilization-detector", cycle(now=1.0), engines, metrics_staleness_threshold="1m") == [2, 3]
    assert kept("utilization-detector", cycle(now=9.0), engines) == [0, 1, 2, 3]


def test_affinity_holds_until_the_others_are_so_much_faster():
    """prefixcacheaffinity/plugin.go: 0.8 of the prompt; tokens in flight / peakPrefillThroughput * 1000 ms."""
    match, engines = Match(10, 64, {0: 8, 1: 9, 2: 7}), views({}, {}, {})
    name, load = "prefix-cache-affinity-filter", InFlightLoad({}, {0: 4000, 1: 3000, 2: 1000}, {})
    assert kept(name, cycle(match, load), engines) == [0, 1]
    assert kept(name, cycle(match, load), engines, affinity_threshold=0.9) == [1]
    assert kept(name, cycle(match, load), engines, affinity_threshold=0.95) == [0, 1, 2]
    ahead = {"peak_prefill_throughput": 1000.0, "max_ttft_penalty_ms": 2000.0}
    assert kept(name, cycle(match, load), engines, **ahead) == [0, 1]  # (3000 - 1000) / 1000 s is no more than 2 s
    assert kept(name, cycle(match, load), engines, **{**ahead, "max_ttft_penalty_ms": 1999.0}) == [0, 1, 2]
    tokens = {"max_ttft_penalty_ms": 0.0, "max_tokens_in_flight_penalty": 1999}
    assert kept(name, cycle(match, load), engines, **tokens) == [0, 1, 2]
    assert kept(name, cycle(match, load), engines, **{**tokens, "max_tokens_in_flight_penalty": 2000}) == [0, 1]
    assert kept(name, cycle(match, load), engines, exploration_probability=1.0) == [0, 1, 2]


def test_ties_are_drawn_evenly_and_by_the_seed():
    engines, made = views({}, {}, {}), cycle()
    drawn = Counter(part("max-score-picker").pick(made, engines, [2.0, 1.0, 2.0]).number for _ in range(400))
    assert drawn.keys() == {0, 2} and min(drawn.values()) > 150
    assert part("max-score-picker").pick(made, engines, [1.0, 3.0, 2.0]).number == 1
    picker = part("random-picker")
    assert {picker.pick(made, engines, [1.0, 3.0, 2.0]).number for _ in range(50)} == {0, 1, 2}


def test_weighted_draws_are_in_proportion_to_scores():
    engines, made, picker = views({}, {}, {}), cycle(), part("weighted-random-picker")
    drawn = Counter(picker.pick(made, engines, [3.0, 1.0, 0.0]).number for _ in range(2000))
    assert drawn[0] / 2000 == pytest.approx(0.75, abs=0.03) and not drawn[2]
    assert {picker.pick(made, engines, [0.0] * 3).number for _ in range(50)} == {0, 1, 2}


def test_the_baseline_weighs_queue_2_kv_2_prefix_3_no_hit_lru_2():
    """The first request is cold: engine 0 by no-hit-lru.  Then its prefix holds it there against a queue."""
    made, idle = router(), views({}, {}, {})
    assert made.choose(asked(0), idle, 0.0).number == 0
    assert made.scores == [2 + 2 + 0 + 2.0, 2 + 2 + 0 + 1.0, 2 + 2 + 0 + 0.0]
    busy = views({"waiting": 3, "kv_usage": 0.25}, {}, {"waiting": 1})
    assert made.choose(asked(1), busy, 0.0).number == 0
    assert made.scores == pytest.approx([0 + 1.5 + 3 + 1, 2 + 2 + 0 + 1, 2 * 2 / 3 + 2 + 0 + 1])
    assert made.choose(asked(2, "b"), busy, 0.0).number == 1  # another prefix, which is cold
    assert made.choose(asked(3, "a", 2), evolve_all(busy, 0, kv_usage=0.8), 0.0).number == 1  # 0.4 + 3 + 1 < 5


def evolve_all(engines: list[View], number: int, **changes: Any) -> list[View]:
    return [evolve(engine, **changes) if engine.number == number else engine for engine in engines]


def test_the_approximate_index_has_blocks_of_64_tokens_and_as_many_as_the_engine():
    """approximateprefix/plugin.go: autoTune takes the engine's size of blocks, at least 64, and its number of them."""
    made = router(scorers={"prefix-cache-scorer": 1.0})
    small = [View(0, 0, 0, kv_blocks=3), View(1, 0, 0, kv_blocks=3)]
    first = made.choose(asked(0), small, 0.0).number
    made.choose(asked(1), small, 0.0)
    assert sorted(made.scores) == [0.0, 0.0]  # its first block of 4 has left, so nobody has it
    made = router(scorers={"prefix-cache-scorer": 1.0}, parameters={APPROXIMATE: {"autoTune": False}})
    first = made.choose(asked(0), small, 0.0).number
    made.choose(asked(1), small, 0.0)
    assert made.scores[first] == 1.0


def test_a_scorer_of_prefixes_may_have_an_index_of_its_own():
    made = router(scorers={"prefix-cache-scorer": 1.0}, parameters={
        "prefix-cache-scorer": {"blockSizeTokens": 128, "autoTune": False, "maxPrefixTokensToMatch": 0,
                                "maxPrefixBlocksToMatch": 1, "lruCapacityPerServer": 100}})
    made.choose(asked(0, blocks=4), views({}), 0.0)
    made.choose(asked(1, blocks=2), views({}), 0.0)
    assert made.scores == [1.0]


def test_tokens_are_in_flight_until_the_first_token_and_requests_until_the_last():
    """inflightload/producer.go, without output tokens."""
    made = router(scorers={"token-load-scorer": 1.0, "active-request-scorer": 1.0},
                  parameters={"token-load-scorer": {"queueThresholdTokens": 1024}})
    engines, first = views({}), asked(0)
    made.choose(first, engines, 0.0)
    assert made.scores == [0.75 + 1]
    made.choose(asked(1, blocks=6), engines, 0.0)  # 256 in flight, and 2 of 6 blocks are new
    assert made.scores == [1 - (256 + 128) / 1024 + 0.0]
    made.on_first_token(first, 0, 1.0)
    made.choose(asked(2), engines, 1.0)
    assert made.scores == [1 - 128 / 1024 + 0.0]
    for number in range(3):
        made.on_end(asked(number), 0, 2.0)
    made.choose(asked(3), engines, 2.0)
    assert made.scores == [1.0 + 1.0]


def test_engines_that_a_filter_leaves_out_have_no_score():
    made = router(filters=["low-queue-filter"], parameters={"low-queue-filter": {"threshold": 1}})
    assert made.choose(asked(), views({"waiting": 2}, {}), 0.0).number == 1
    assert str(made.scores[0]) == "nan"


def test_a_request_is_refused_if_filters_leave_no_engine():
    made = router(filters=["low-queue-filter"], parameters={"low-queue-filter": {"threshold": 1}})
    assert made.choose(asked(), views({"waiting": 2}, {"waiting": 2}), 0.0) is None
    assert made.refusal == "the filters of profile 'default' leave no engine"


@pytest.mark.parametrize("options, signals", [
    ({}, ("metrics",)),
    ({"scorers": {"token-load-scorer": 1.0}, "filters": ["prefix-cache-affinity-filter"]}, ("books",)),
    ({"scorers": {"precise-prefix-cache-scorer": 1.0, "queue-scorer": 1.0}}, ("metrics", "kv_events")),
])
def test_it_goes_by_the_signals_of_its_parts(options, signals):
    assert router(**options).signals == signals


@pytest.mark.parametrize("options, words", [
    ({"scorers": {"queue-score": 1.0}}, ["no plugin 'queue-score'", "mean 'queue-scorer'", "token-load-scorer"]),
    ({"scorers": {"latency-scorer": 1.0}}, ["llm-d's latency-scorer is not simulated"]),
    ({"scorers": {"queue-scorer": 0.0, "no-hit-lru-scorer": 0.0}}, ["only weights of 0"]),
    ({"scorers": {"queue-scorer": -1.0}}, ["a weight of -1"]),
    ({"picker": "queue-picker"}, ["no plugin 'queue-picker'", "max-score-picker"]),
    ({"parameters": {"load-aware-scorer": {"treshold": 3}}}, ["treshold", "did you mean 'threshold'"]),
    ({"parameters": {"prefix-cache-scorer": {"prefixMatchInfoProducerName": "mine"}}}, ["'mine'"]),
    ({"filters": ["prefix-cache-affinity-filter"],
      "parameters": {"prefix-cache-affinity-filter": {"maxTTFTPenaltyMs": -1}}}, ["maxTTFTPenaltyMs", ">= 0"]),
    ({"filters": ["queue-scorer"]}, ["twice"]),
])
def test_what_it_refuses(options, words):
    with pytest.raises(ConfigError) as caught:
        router(**options)
    assert all(word in str(caught.value) for word in words), caught.value

"""Dynamo's KV router decides as its source says (github.com/ai-dynamo/dynamo, lib/kv-router/src, October 2026)."""

from collections import Counter
from math import exp
from typing import Any

import pytest

from ksim.cluster.routers.dynamo_kv import _Cached as Cached
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from tests.cluster.views import View


def router(**options: Any) -> Any:
    return plugin("cluster.routers", Choice("dynamo_kv", options))


def asked(number: int, blocks: int = 4, group: str = "a") -> Request:
    """A request with a prompt of blocks of 16 tokens, which all of its group share."""
    return Request(number, 0.0, 16 * blocks, 10, [(group, place) for place in range(blocks)], 16)


def engines(*cached: int, tiers: dict[int, dict[str, int]] | None = None) -> list[View]:
    return [View(number, 0, hit, tiers=(tiers or {}).get(number, {})) for number, hit in enumerate(cached)]


def test_a_cost_is_prompt_blocks_less_credit_plus_blocks_that_are_served():
    """selector.rs, worker_logit: 4 - 3 to compute and 4 to serve, against 4 and 4."""
    made = router()
    assert made.choose(asked(0), engines(48, 0), 0.0).number == 0
    assert made.scores == [-(1 + 4), -(4 + 4)]


def test_what_is_sent_counts_until_its_first_token_and_its_blocks_until_its_end():
    made, idle, first = router(), engines(0), asked(0)
    made.choose(first, idle, 0.0)
    made.choose(asked(1, group="b"), idle, 0.0)
    assert made.scores == [-(8 + 8)]  # the first's 4 blocks are to be computed, and served
    made.on_first_token(first, 0, 1.0)
    made.choose(asked(2), idle, 1.0)
    assert made.scores == [-(8 + 8)]  # 4 of the second and 4 of its own; it shares the first's blocks
    for number, group in enumerate("aba"):
        made.on_end(asked(number, group=group), 0, 2.0)
    made.choose(asked(3), idle, 2.0)
    assert made.scores == [-(4 + 4)]


def test_only_what_is_not_cached_has_to_be_computed():
    made = router()
    made.choose(asked(0), engines(48), 0.0)
    made.choose(asked(1, group="b"), engines(0), 0.0)
    assert made.scores == [-(1 + 4 + 8)]


def test_lower_tiers_have_less_credit():
    """Host memory 0.75, disk 0.25 a block; what all share is on disk for it, too."""
    made = router()
    made.choose(asked(0, 8), engines(32, 0, 0, tiers={0: {"cpu": 32}, 1: {"disk": 64}, 2: {"storage": 16}}), 0.0)
    assert made.scores == [-(8 - 2 - 2 * 0.75 + 8), -(8 - 4 * 0.25 + 8), -(8 - 0.25 + 8)]


def test_the_source_s_own_example_of_credit_beyond_the_prompt():
    """selector.rs, test_worker_logit_clamps_non_decode_overlap_credit: 2 * (7 - 6) + 5 blocks."""
    made = router(prefill_load_scale=2.0)
    made.choose(asked(0, 2, "b"), engines(0), 0.0)
    made._prefill[0] = 16
    costs = made._costs(asked(1, 4), made._index.prompt(asked(1, 3)), engines(0), Cached([6], {}))
    assert costs == [7.0]


def test_weights_of_either_side():
    assert router(overlap_score_weight=2.0).prefill_load_scale == 2.0
    off = router(overlap_score_weight=0.0)
    assert (off.prefill_load_scale, off.overlap_score_credit) == (0.0, 0.0)
    heavy = router(prefill_load_scale=3.0, overlap_score_credit=0.5)
    heavy.choose(asked(0), engines(32), 0.0)
    assert heavy.scores == [-(3 * (4 - 0.5 * 2) + 4)]


def test_credit_decays_with_prompts_to_compute_beyond_the_least():
    """1 / (1 + decay * (excess blocks / request blocks)): 8 blocks over 4 with a decay of 0.5 halve the credit."""
    made = router(overlap_score_credit_decay=0.5)
    made._prefill[0] = 128
    made.choose(asked(0), engines(64, 0), 0.0)
    assert made.scores == [-(8 + 4 - 0.5 * 4 + 4), -(4 + 4)]


def test_without_kv_events_it_goes_by_what_it_sent_in_the_last_two_minutes():
    made, unseen = router(use_kv_events=False), engines(10**6, 10**6)
    assert made.signals == ("books",)
    chosen = made.choose(asked(0), unseen, 0.0).number
    made.on_end(asked(0), chosen, 1.0)
    made.choose(asked(1), unseen, 119.0)
    assert made.scores[chosen] == -(0 + 4) and made.scores[1 - chosen] == -(4 + 4)
    made.on_end(asked(1), chosen, 119.0)
    made.choose(asked(2), unseen, 240.0)
    assert made.scores == [-8, -8]


def test_equals_are_drawn_by_the_seed():
    drawn = Counter(router(seed=seed).choose(asked(0), engines(0, 0, 64, 64), 0.0).number for seed in range(200))
    assert drawn.keys() == {2, 3} and min(drawn.values()) > 70


def test_a_temperature_draws_in_proportion_to_exp_of_normalised_costs():
    """softmax_sample: weights exp(-(cost - least) / ((most - least) T)), so 1, e^-1 and e^-2 here."""
    made, drawn = router(router_temperature=0.5), Counter()
    for number in range(3000):
        chosen = made.choose(asked(number), engines(64, 32, 0), 0.0)
        drawn[chosen.number] += 1
        made.on_end(asked(number), chosen.number, 0.0)
    weights = [1.0, exp(-1), exp(-2)]
    assert [drawn[number] / 3000 for number in range(3)] == pytest.approx([w / sum(weights) for w in weights], abs=0.03)


@pytest.mark.parametrize("options", [{"overlap_score_credit": 1.5}, {"router_temperature": -1.0},
                                     {"router_ttl_secs": 0.0}, {"host_cache_hit_weight": 2.0}, {"block_size": -1}])
def test_what_it_refuses(options):
    with pytest.raises(ConfigError, match="dynamo_kv"):
        router(**options)

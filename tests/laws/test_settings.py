"""Whatever engine release, eviction, policy and threshold meet, every request gets its tokens."""

from itertools import product

import pytest
from attrs import evolve

from ksim.engine.loop_times import Horizon
from ksim.flow.log import Log
from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.scheduling.job import State
from ksim.simulation.assembly import build
from ksim.testing.loop import Loop

#: `long_prefill_token_threshold`, and whether it is adaptive.
THRESHOLDS = [(0, False), (8, False), (8, True)]
POLICIES = catalog.names("scheduling.policies")
EVICTIONS = [None, *catalog.names("kv.cache.evictions")]
LENGTHS = {"kind": "fixed", "value": 1}
SCENARIO = {"model": "llama-3.2-1b", "gpu": "h200",
            "serve": {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 16,
                      "num_gpu_blocks_override": 9,  # for one request and a part of another
                      "scheduler_reserve_full_isl": True},
            "workload": {"synthetic": {"count": 1, "arrivals": {"process": "poisson", "rate": 1.0}, "prompt": LENGTHS,
                                       "output": LENGTHS}}}


#: The same for an engine with SGLang's scheduler.
SGLANG = {"sglang": {"context_length": 128, "max_running_requests": 4, "chunked_prefill_size": 32, "page_size": 16,
                     "max_total_tokens": 128}}


def ordering(name):
    """Whether a policy has an order or victims alone, as SGLang's scheduler takes it."""
    policy = catalog.find("scheduling.policies", name)
    return not hasattr(policy, "propose") and not hasattr(policy, "queue")


@pytest.mark.parametrize("engine", catalog.entries("engines"))
def test_every_request_gets_its_tokens(engine):
    own = {"serve": SGLANG} if engine.startswith("sglang") else {}
    site = Deployment.of(Scenario.of(SCENARIO | {"engine": engine} | own))
    prefix_cache = "sglang" if own else "vllm"
    policies = [name for name in POLICIES if not own or ordering(name)]
    first = catalog.entries("engines").index(engine)  # a release tries one threshold with a pair, the next another
    for number, (eviction, policy) in enumerate(product(EVICTIONS, policies), first):
        threshold, adaptive = THRESHOLDS[number % len(THRESHOLDS)]
        serve = evolve(site.scenario.serve, prefix_cache=prefix_cache,
                       eviction=Choice(eviction or "lru") if own else eviction and Choice(eviction),
                       scheduling_policy=Choice(policy), long_prefill_token_threshold=threshold,
                       long_prefill_token_threshold_adaptive=adaptive)
        cluster = build(evolve(site, scenario=evolve(site.scenario, serve=serve)), Horizon(), Log(), lambda: None)
        loop = Loop(cluster.engines[0].scheduler)
        loop.turn()  # with nobody there
        jobs = [loop.add(prompt, 10, chunks=[("shared", place) for place in range(3)]) for prompt in (40, 74, 50)]
        loop.run(100)
        assert [(job.state, job.sampled) for job in jobs] == [(State.DONE, 10)] * 3, (eviction, policy, threshold)
        assert loop.cache.pool.used == 0

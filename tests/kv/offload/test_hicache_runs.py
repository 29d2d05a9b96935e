"""Whole runs with SGLang's HiCache: what comes back from host memory, at which time, and what is refused."""


import pytest

from ksim.flow.events import Copied
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.views.result import Result
from tests.kv.offload.hicache import with_hicache
from tests.kv.offload.runs import BLOCK
from tests.kv.transfer.fleets import run


def loaded(result: Result) -> int:
    return int(sum(result.requests.column("cpu_tokens").to_pylist()))


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_turns_find_in_host_memory_what_the_gpu_has_lost(model, policy):
    result = run(with_hicache(model, {"hicache_write_policy": policy}))
    assert result.summary["completed"] == 12
    assert loaded(result) > 0 and result.summary["cpu_hit_rate"] > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_copies_have_the_bytes_of_their_tokens_on_all_gpus(model, ranks):
    result = run(with_hicache(model, tensor_parallel_size=ranks))
    copies = [*result.log.of(Copied)]
    assert {copy.source for copy in copies} == {"cpu", "gpu"}
    assert all(copy.bytes == copy.tokens * BLOCK / 16 for copy in copies)
    assert loaded(result) == sum(copy.tokens for copy in copies if copy.target == "gpu")


def test_an_engine_that_skips_gives_what_one_that_steps_gives(model):
    table = with_hicache(model)
    one, other = run(table), run(table, skips=False)
    assert one.requests.equals(other.requests)


def test_little_host_memory_holds_little(model):
    assert loaded(run(with_hicache(model, {"hicache_ratio": 0.01}))) == 0


@pytest.mark.parametrize(("serve", "options", "words"), [
    ({"prefix_cache": "vllm"}, {}, "serve.prefix_cache is 'vllm', and HiCache keeps SGLang's radix tree; set"),
    ({}, {"hicache_write_policy": "never"}, "write_through_selective"),
    ({}, {"hicache_size": 100_000.0}, "GiB of host memory for KV")])
def test_what_cannot_be_is_refused(model, serve, options, words):
    with pytest.raises(ConfigError) as refused:
        Fleet.of(Scenario.of(with_hicache(model, options, **serve)))
    assert words in str(refused.value).replace("serve.prefix_cache: is", "serve.prefix_cache is")

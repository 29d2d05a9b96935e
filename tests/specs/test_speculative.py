"""Settings of speculative decoding are read as vLLM reads them."""

import pytest

from ksim.features.drafts import speculation_of
from ksim.foundation.config import Choice, plain, structure
from ksim.specs.configs import KvTransferConfig, SpeculativeConfig
from ksim.specs.settings import EngineSettings

GEOMETRIC = Choice("geometric", {"rate": 0.5})


def config(**values: object) -> SpeculativeConfig:
    return structure(SpeculativeConfig, {"num_speculative_tokens": 3, "acceptance": plain(GEOMETRIC), **values})


def settings(**values: object) -> EngineSettings:
    return EngineSettings(speculative_config=config(**values), max_num_batched_tokens=64)


@pytest.mark.parametrize(("named", "method"), [
    ({"method": "deepseek_mtp"}, "mtp"), ({"method": "qwen3_next_mtp"}, "mtp"), ({"method": "[ngram]"}, "ngram"),
    ({"method": "ngram_gpu"}, "ngram"), ({"model": "ngram"}, "ngram"), ({"model": "llama-3.2-1b"}, "draft_model"),
    ({"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}, "eagle3"), ({"model": "yuhuili/EAGLE-LLaMA3-8B"}, "eagle")])
def test_the_method_is_the_one_that_vllm_takes(named, method):
    made = config(**named)
    assert made.method == method
    assert structure(SpeculativeConfig, plain(made)) == made


def test_a_synthetic_length_gives_the_least_varied_rates():
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.4}
    made = SpeculativeConfig(3, "ngram", **synthetic)
    assert made.synthetic_rates == pytest.approx([1.0, 0.4, 0.0])
    assert 1 + sum(made.synthetic_rates) == pytest.approx(2.4)
    rates = SpeculativeConfig(2, "ngram", rejection_sample_method="synthetic", synthetic_acceptance_rates=(0.9, 0.5))
    assert rates.synthetic_rates == (0.9, 0.5)


@pytest.mark.parametrize(("given", "both"), [({}, (5, 5)), ({"prompt_lookup_max": 4}, (4, 4)),
                                             ({"prompt_lookup_min": 2}, (2, 2)),
                                             ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4))])
def test_a_lookup_that_is_half_said_is_as_vllms(given, both):
    assert config(method="ngram", **given).lookup == both


def test_slots_and_keys_are_those_of_the_method():
    eagle, ngram, draft = (speculation_of(settings(method=method, model="m"))
                           for method in ("eagle3", "ngram", "draft_model"))
    assert eagle and ngram and draft
    assert [made.lookahead for made in (eagle, ngram, draft)] == [3, 0, 3]
    assert [made.input_slots for made in (eagle, ngram, draft)] == [0, 0, 1]
    assert [made.keys_ahead for made in (eagle, ngram, draft)] == [True, False, False]
    assert not any(made.drops_block for made in (eagle, ngram, draft))


@pytest.mark.parametrize(("values", "keys_ahead", "drops_block"), [
    ({"disable_lookahead_block_hashes": True}, False, True), ({"disable_eagle_block_drop": True}, False, False)])
def test_keys_of_eagle_may_be_plain(values, keys_ahead, drops_block):
    made = speculation_of(settings(method="mtp", **values))
    assert made and (made.keys_ahead, made.drops_block) == (keys_ahead, drops_block)


def test_with_a_connector_keys_are_plain_and_a_hit_loses_its_last_block():
    settings = EngineSettings(speculative_config=config(method="mtp"), kv_transfer_config=KvTransferConfig())
    made = speculation_of(settings)
    assert made and (made.keys_ahead, made.drops_block) == (False, True)


def test_without_a_config_nothing_is_drafted():
    assert EngineSettings().drafted == 0 and speculation_of(EngineSettings()) is None
    assert settings(method="ngram").drafted == 3

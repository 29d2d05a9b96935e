"""When speculation pays: times with a drafter beside plain ones, and the batch where it stops to pay."""

from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.study.speculation import Payoff, _crossing, accepted_length, compared, payoff, verified
from tests.properties import examples
from tests.scenario.tables import TABLE

EAGLE3 = {"method": "eagle3", "model": "eagle3-llama-3.1-8b", "num_speculative_tokens": 3}


def scenario(config: dict[str, Any] | None, rate: float = 0.8, **serve: Any) -> Scenario:
    acceptance = {"name": "geometric", "rate": rate}
    speculation = {"speculative_config": {"acceptance": acceptance, **config}} if config else {}
    return Scenario.of({**TABLE, "serve": {"max_model_len": 8192, "max_num_seqs": 64, **speculation, **serve}})


def test_more_acceptance_never_raises_the_time_a_token() -> None:
    found = [payoff(scenario(EAGLE3, rate), 1000) for rate in (0.0, 0.5, 1.0)]
    assert [one.length for one in found] == [1.0, 1.875, 4.0]
    for worse, better in pairwise(found):
        assert all(fast < slow for fast, slow in zip(better.speculative, worse.speculative, strict=True))
        assert better.plain == worse.plain and better.pays >= worse.pays


def test_without_acceptance_speculation_never_pays() -> None:
    found = payoff(scenario(EAGLE3, 0.0), 1000)
    assert found.pays == 0 and "does not pay" in found.sentence
    assert all(fast > plain for fast, plain in zip(found.speculative, found.plain, strict=True))


def test_times_are_those_of_steps() -> None:
    config = scenario(EAGLE3)
    found, step = payoff(config, 1000), compared(config, Batch.of(*[(1, 1000)] * 4))
    place = found.batches.index(4)
    timer, = Deployment.of(config).timers()
    whole = timer.step_cost(Batch.of(*[(4, 1000)] * 4, width=4))
    assert found.speculative[place] == max(whole.seconds, whole.launch_seconds) / found.length
    assert step.seconds == pytest.approx(whole.seconds) and step.target > step.draft > step.verification > 0
    assert step.plain == pytest.approx(found.plain[place])


def test_speculation_stops_to_pay_where_it_is_said_to() -> None:
    """Arithmetic bounds large batches of short sequences, and verification is more of it."""
    config = scenario(EAGLE3, 0.3, max_num_seqs=512)
    found = payoff(config, 16)
    assert 0 < found.pays < found.most and f"up to {found.pays} sequences" in found.sentence
    last, beyond = (compared(config, Batch.of(*[(1, 16)] * count)) for count in (found.pays, found.pays + 1))
    assert last.seconds <= found.length * last.plain
    assert beyond.seconds > found.length * beyond.plain


@given(st.integers(0, 300), st.integers(1, 300))
@examples(60)
def test_crossing_is_the_last_batch_that_pays(pays: int, most: int) -> None:
    batches = sorted({most, *(2**power for power in range(most.bit_length()))})
    assert _crossing(batches, lambda batch: batch <= pays) == min(pays, most)


def test_n_grams_that_are_not_found_verify_nothing() -> None:
    config = scenario({"method": "ngram", "num_speculative_tokens": 2, "match_rate": 0.5}, 0.5).serve.speculative_config
    assert config is not None
    batch = verified(Batch.of(*[(1, 100)] * 4, (60, 0)), config)
    assert (batch.width, batch.tokens, batch.drafts) == (3, 2 * 3 + 2 + 60, 4)
    assert batch.chunks == ((1, 100), (1, 100), (60, 0))
    assert accepted_length(config) == 1 + 0.5 * (0.5 + 0.25)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="no speculation"):
        payoff(scenario(None), 1000)
    with pytest.raises(ConfigError, match="no room for a sequence"):
        payoff(scenario(EAGLE3, num_gpu_blocks_override=3), 1000)


def test_sentences_say_where_it_ends() -> None:
    def said(pays: int, last: float = 2.0) -> str:
        return Payoff(title="", drafts=1, length=1.5, context=10, batches=(1, 2, 4), plain=(1.0,) * 3,
                      speculative=(1.0, 1.0, last), pays=pays).sentence

    assert "even for one" in said(0) and "and not from 3 on" in said(2) and "every batch up to 4" in said(4)
    assert said(1, last=1.0).endswith("up to 1 sequences, not from 2 on, and again for 2")


def test_drafts_are_of_their_sequences_adapters() -> None:
    config = scenario({"method": "ngram", "num_speculative_tokens": 3}, 0.5).serve.speculative_config
    assert config is not None
    assert verified(evolve(Batch.of(*[(1, 100)] * 4), adapters=(2, 1)), config).adapters == (8, 4)

"""What EnergyLens (arXiv 2605.14249) found about energy, in direction and rough size: docs/evidence/energylens.md."""

from functools import cache

import pytest

from benchmarks.energylens import techniques
from benchmarks.energylens.batches import Survey
from benchmarks.energylens.techniques import MOST, NONE, Overlaps

BATCHES, LENGTHS = (1, 8, 64), (256, 4096, 8192)


@cache
def survey(model: str = "llama-3.1-70b") -> Survey:
    return Survey.of(model, batches=BATCHES, lengths=LENGTHS)


@pytest.mark.parametrize("model, prefill, decode", [("llama-3.1-70b", 1.05, 30), ("qwen3-30b-a3b", 1.2, 10)])
def test_batches_matter_to_decodes_and_not_to_prompts(model, prefill, decode):
    """Energy per token; Qwen's decodes save less, as more of them need more experts."""
    effect = survey(model).batch_effect(8, 4096)
    assert effect.prefill < prefill
    assert effect.decode > decode


def test_decodes_vary_by_tens_of_times_and_prompts_by_less_than_two():
    """Over all configurations: 52.9 and 1.47 in the paper."""
    variation = survey().variation
    assert 1.3 < variation.prefill < 1.8
    assert 40 < variation.decode < 70


def test_all_reduces_take_a_quarter_of_the_time_and_less_of_the_energy():
    """Among eight GPUs: the paper says 23 % of the energy, ours is half of that, because SMs wait meanwhile."""
    for point in survey().prefills:
        if point.gpus == 8:
            assert 0.2 < point.exchanging < 0.3
            assert 0.08 < point.exchanged < 0.13
            assert point.exchange_watts < 0.5 * point.watts


def test_all_reduces_grow_with_the_gpus():
    shares = {point.gpus: point.exchanged for point in survey().prefills if (point.batch, point.length) == (1, 4096)}
    assert shares[2] < 0.5 * shares[4] < 0.5 * shares[8]


def test_decodes_draw_far_less_than_the_limit():
    """Up to 60 % less in the paper, for Llama; ours 40 %, and 63 % for Qwen."""
    assert 0.35 < survey().below_limit.decode < 0.45
    assert survey("qwen3-30b-a3b").below_limit.decode > 0.55


def test_prompts_prefer_small_batches_on_few_gpus_and_decodes_large_ones():
    """No batch of prompts is worth its wait; each larger batch of decodes is, as long as it fits."""
    prefills, decodes = survey().fronts(4096)
    assert {point.batch for point in prefills} == {1}
    assert [point.gpus for point in prefills] == [8, 4, 2]
    assert {point.batch for point in decodes} == set(BATCHES)
    prompt, decode = survey().thriftiest
    assert prompt.gpus == 2 and decode.batch == 64


def test_fusion_saves_per_cents_and_more_in_decodes():
    """4.37 and 8.18 % in the paper."""
    saved = techniques.average(batches=(1, 64), lengths=(512, 4096))
    assert 0.02 < saved.prefill < saved.decode < 0.10


def test_most_overlap_is_not_always_best():
    """It is among four and eight GPUs, where all-reduces take long; among two, none is better."""
    overlaps = Overlaps.of("llama-3.1-70b", batches=(1, 4))
    assert overlaps.recovered(MOST) < 0.8
    assert (2, NONE) in {(point.gpus, point.variant) for point in overlaps.front}
    for batch in (1, 4):
        assert min(overlaps.change(MOST, 2, batch)) > 1.0
        assert max(overlaps.change(MOST, 8, batch)) < 1.0
        assert min(overlaps.change("1 SM", 8, batch)) > 1.3

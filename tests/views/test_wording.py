"""How numbers, and the headline of a run, are written."""

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.views.wording import DOWN, UP, measure, number, percent, subject
from tests.properties import examples
from tests.results import fabricate

LABELS = {"model_id": "llama", "gpu": "h200"}


@pytest.mark.parametrize(("engines", "rate", "said"), [
    ([fabricate.built(0)], None, "llama on 1 x h200, TP 1"),
    ([fabricate.built(0, ranks=4)], 2.5, "llama on 4 x h200, TP 4, 2.50 requests/s offered"),
    ([fabricate.built(0, 2, 4), fabricate.built(1, 2, 4)], 12.0, "llama on 16 x h200, TP 2, PP 4, DP 2, 12.0 requests/s"
     " offered"),
    ([], None, "llama on 0 x h200"),
])
def test_a_subject_names_model_gpus_parallelism_and_rate(engines, rate, said):
    assert subject(LABELS, engines, rate) == said


@pytest.mark.parametrize(("model", "said"), [
    ("models/mine/config.json", "mine on"), ("config.json", "config.json on"), ("m" * 50, f"…{'m' * 39} on")])
def test_models_by_path_are_named_after_their_folder(model, said):
    assert subject({**LABELS, "model_id": model}, [fabricate.built(0)]).startswith(said)


def test_without_labels_the_engines_say_what_they_run_on():
    assert subject({}, [fabricate.built(0)]) == "a model on 1 x h200, TP 1"


@pytest.mark.parametrize("value, unit, text", [
    (0.0928, "J", "92.8 mJ"), (1.7, "J", "1.70 J"), (7.28e12, "FLOP", "7.28 TFLOP"), (2.5e-6, "s", "2.50 us"),
    (0, "s", "0 s"), (1e3, "B", "1.00 kB"), (2e-9, "s", "0.0020 us")])
def test_a_measure_has_the_prefix_that_it_reads_best_with(value, unit, text):
    assert measure(value, unit) == text


@given(st.floats(-1e15, 1e15) | st.integers(0, 10**12))
@example(90071992547410.75)  # a hundred times this are more digits than a float has
@examples(200)
def test_a_bound_is_outside_of_its_value_and_close_to_it(value):
    exact = Decimal(repr(value))
    for show, scale in ((number, 1), (percent, 100)):
        low, high = (Decimal(show(value, rounding=way).removesuffix(" %").replace(",", "")) / scale
                     for way in (DOWN, UP))
        assert low <= exact <= high and high - low <= max(1.0, 0.011 * abs(value))
    assert number(0.07, UP) == "0.0700" and percent(0.07, 0, UP) == "7 %" and number(None, UP) == percent(None) == "-"

"""The fewest replicas, the best set-up, and its interval: against a judge that knows the answers."""

from itertools import count
from math import ceil

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from ksim.study.capacity.answer import contest
from ksim.study.capacity.judge import fewest
from ksim.study.capacity.result import rates_text, sentence, table
from ksim.study.capacity.targets import Interval
from ksim.views.tables import markdown
from tests.properties import examples
from tests.study.capacity.synthetic import TPOT, TTFT, Knows, light, named

RATES = st.floats(0.5, 200.0)


def needed_for(rate: float, carried: float) -> int:
    """The fewest replicas, of which each has carried so much, that keep up with *rate*, as `Knows` judges."""
    return next(replicas for replicas in count(1) if rate / (replicas * carried) <= 1)


@examples(200)
@given(rate=RATES, carried=st.floats(0.5, 60.0), flooded=st.floats(0.3, 5.0))
@example(rate=0.5000000000000001, carried=0.5, flooded=1.0)  # one replica carries all but the last bit
def test_the_fewest_replicas_carry_the_rate_and_one_fewer_does_not(rate, carried, flooded):
    judge = Knows({"a": carried})
    found = fewest(judge, named("a"), rate, light(0.1, 0.01, seconds=100.0), flooded * carried)
    assert found.replicas == needed_for(rate, carried)
    assert found.point.rate == rate


@examples(100)
@given(rate=RATES, carried=st.floats(0.5, 60.0), flooded=st.floats(0.3, 5.0))
def test_no_number_of_replicas_is_run_twice_and_few_are_run_at_all(rate, carried, flooded):
    judge = Knows({"a": carried})
    needed = fewest(judge, named("a"), rate, light(0.1, 0.01, seconds=100.0), flooded * carried).replicas
    sizes = [replicas for _, replicas, _ in judge.asked]
    assert len(set(sizes)) == len(sizes) <= 2 * max(needed, sizes[0]).bit_length() + 2


def test_a_good_guess_takes_two_questions():
    judge = Knows({"a": 3.0})
    assert fewest(judge, named("a"), 100.0, light(0.1, 0.01), 3.0 / 0.75).replicas == 34
    assert len(judge.asked) == 2


def test_where_runs_cannot_tell_their_estimate_does():
    judge = Knows({"a": 3.0}, sure=lambda replicas: False)
    assert fewest(judge, named("a"), 10.0, light(0.1, 0.01), 4.0).replicas == 4


def test_replicas_end_where_more_of_them_have_nothing_to_do():
    judge = Knows({"a": 1e-9})
    found = fewest(judge, named("a"), 10.0, light(0.1, 0.01, seconds=1.0), 20.0)
    assert found.replicas is None and max(replicas for _, replicas, _ in judge.asked) == 40


@examples(100)
@given(rate=RATES, carried=st.lists(st.floats(1.0, 60.0), min_size=2, max_size=4),
       gpus=st.lists(st.integers(1, 8), min_size=4, max_size=4))
def test_without_prices_the_fewest_gpus_win(rate, carried, gpus):
    names = "abcd"[:len(carried)]
    judge = Knows(dict(zip(names, carried, strict=True)))
    order = contest(judge, [named(name, each) for name, each in zip(names, gpus, strict=False)], rate)
    needed = [each * needed_for(rate, one) for each, one in zip(gpus, carried, strict=False)]
    assert [one.gpus for one in order] == sorted(needed)
    low, high = order[0].gpus_between(rate)
    assert low <= order[0].gpus <= high


def test_prices_come_before_gpus_and_joules_break_ties():
    judge = Knows({"a": 5.0, "b": 10.0, "c": 10.0}, joules={"b": 3.0, "c": 2.0})
    made = [named("a"), named("b"), named("c")]
    assert [one.setup.name for one in contest(judge, made, 10.0)] == ["c", "b", "a"]
    judge.prices = {"a": 1.0, "b": 4.0, "c": 4.0}
    assert [one.setup.name for one in contest(judge, made, 10.0)] == ["a", "c", "b"]
    judge.prices = {"a": 1.0}
    assert [one.setup.name for one in contest(judge, made, 10.0)] == ["c", "b", "a"]


@examples(100)
@given(rate=RATES, carried=st.floats(1.0, 60.0), below=st.floats(0.5, 1.0), above=st.floats(1.0, 1.5))
def test_the_interval_of_gpus_is_that_of_the_rate_in_whole_replicas(rate, carried, below, above):
    unsure = Knows({"a": carried}, spread=(below, above), sure=lambda replicas: False)
    best = contest(unsure, [named("a", 4)], rate)[0]
    low, high = best.gpus_between(rate)
    assert low == 4 * min(best.replicas, max(1, ceil(rate / (carried * above) - 1e-9)))
    assert high == 4 * max(best.replicas, ceil(rate / (carried * below) - 1e-9))


def test_a_rate_that_no_number_of_replicas_completes_is_said_so():
    order = contest(Knows({"a": 1.0}), [named("a")], 1e9)
    assert order[0].problem.startswith("1e+09 requests/s are more than 10,000 replicas complete")


def test_only_the_best_is_searched_for_its_highest_rate():
    order = contest(Knows({"a": 5.0, "b": 10.0}), [named("a"), named("b")], 10.0)
    assert [one.answer is not None for one in order] == [True, False]


def test_without_a_rate_set_ups_are_ranked_by_rate_per_gpu():
    order = contest(Knows({"a": 5.0, "b": 12.0, "c": 0.0}), [named("a"), named("b", 4), named("c")], None)
    assert [one.setup.name for one in order] == ["a", "b", "c"]
    assert [one.rate_per_gpu for one in order[:2]] == [5.0, 3.0]
    assert not order[2].stands and "kept at no rate" in order[2].problem


def test_set_ups_that_miss_a_target_alone_are_not_run_under_load():
    judge = Knows({"a": 5.0, "b": 5.0}, lights={"a": light(0.1, 0.061, [TPOT])})
    order = contest(judge, [named("a"), named("b"), named("c", problem="no memory")], 10.0)
    assert [one.setup.name for one in order] == ["b", "a", "c"] and {name for name, *_ in judge.asked} == {"b"}
    assert order[1].problem == ("TPOT p99 is 61.0 ms with one request at a time, and may be 50.0 ms: decode steps are"
                                " memory-bound for 87 % of their GPU time: they wait for weights")


def test_the_sentence_names_gpus_replicas_their_interval_and_the_models_part():
    unsure = Knows({"TP4": 3.5}, spread=(0.8, 1.1), sure=lambda replicas: False)
    order = contest(unsure, [named("TP4", 4)], 10.0)
    assert sentence(order, 10.0, 0.95) == ("12 GPUs (3 replicas of TP4) for 10 requests/s; 95 %: 12 to 16; of the width"
                                           " 9/10 is the model's error, the rest traffic")


def test_the_sentence_without_a_rate_names_the_highest_one():
    order = contest(Knows({"TP4": 30.0}), [named("TP4", 4)], None)
    assert sentence(order, None, 0.95) == ("30.0 requests/s on 4 GPUs (TP4); 95 %: 27.0 to 33.0; of the width 9/10 is"
                                           " the model's error, the rest traffic")


def test_where_nothing_keeps_the_targets_the_sentence_names_what_comes_closest():
    lights = {"a": light(0.1, 0.061, [TPOT]), "b": light(2.0, 0.100, [TTFT, TPOT])}
    order = contest(Knows({"a": 5.0, "b": 5.0}, lights=lights), [named("b"), named("a")], 10.0)
    assert sentence(order, 10.0, 0.95).startswith("no set-up keeps the targets; a comes closest: TPOT p99 is 61.0 ms")


def test_the_table_is_markdown_whose_columns_stand_one_below_the_other():
    judge = Knows({"a": 5.0, "b": 12.0}, prices={"a": 1.25, "b": 4.0})
    order = contest(judge, [named("a"), named("b", 4), named("c", problem="no memory")], 10.0)
    head, rule, *rows = markdown(table(order, (TTFT, TPOT), 10.0))
    assert rule.count("|") == head.count("|") and {len(line) for line in (head, rule, *rows[:2])} == {len(head)}
    assert [cell.strip() for cell in head.split("|")[1:5]] == ["set-up", "GPUs", "GPUs, 95 %", "replicas"]
    assert [cell.strip() for cell in rows[0].split("|")[1:4]] == ["a", "2", "2 to 3"]
    assert len(rows) == 2 and [one.problem for one in order if not one.stands] == ["no memory"]


@pytest.mark.parametrize(("share", "said"), [(0.0, "nearly all of the width is traffic"),
                                             (1.0, "nearly all of the width is the model's error")])
def test_shares_that_round_to_all_are_said_so(share, said):
    class Sided(Knows):
        def highest(self, setup, replicas, near, errors):
            return evolve(super().highest(setup, replicas, near, errors), model_share=share)

    assert sentence(contest(Sided({"a": 3.0}), [named("a")], None), None, 0.95).endswith(said)


@pytest.mark.parametrize(("low", "high", "said"), [
    (0.0, float("inf"), "unknown"), (9.0, float("inf"), "9.00 or more"), (9.0, 12.5, "9.00 to 12.5")])
def test_an_interval_without_ends_is_said_in_words(low, high, said):
    assert rates_text(Interval(low, high)) == said

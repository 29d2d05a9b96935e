"""All routers on one trace: the same requests, regret against the best, and what an order of names may not change."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ksim
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError, UnknownKey, UnknownName
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.study.routers import (
    STALENESS,
    RouterComparison,
    RoutersPlan,
    Waits,
    candidates,
    explained,
    imbalance,
    key_of,
    label,
    listed,
    parsed,
    picture,
    ranked,
    regrets,
    router_of,
    yardstick,
)
from ksim.study.rows import OK, RunRow, points_of
from ksim.views.charts import Dots
from tests.properties import examples

LOAD = {"count": 8, "arrivals": {"process": "poisson", "rate": 60.0}, "prefixes": {"groups": 5, "tokens": 512},
        "prompt": {"kind": "uniform", "low": 20, "high": 300}, "output": {"kind": "uniform", "low": 2, "high": 30}}
SCENARIO = Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "slo": {"ttft": "50 ms"},
                        "serve": {"data_parallel_size": 2, "max_model_len": 1024}, "workload": {"synthetic": LOAD}})
SPLIT = SCENARIO.with_values({"serve.data_parallel_size": 1, "pools": {
    "p": {"role": "prefill", "replicas": 2}, "d": {"role": "decode", "replicas": 2}}})
NAMES = ["round_robin", "prefix_aware:load_tokens=0"]
AGES = [0, "200ms"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return ksim.routers(SCENARIO, NAMES, AGES, seeds=2, jobs=1, output=tmp_path_factory.mktemp("r") / "out")


def runs(comparison):
    """What each router did, without the numbers of its points."""
    return {(router_of(point), point.settings.get(STALENESS), row.seed): row.numbers
            for point in comparison.points for row in point.rows}


def test_every_router_gets_the_same_requests_at_the_same_times():
    first, *others = [simulate(SCENARIO.with_values({"router": plain(parsed(name))})).history.requests.requests
                      for name in [*NAMES, "omniscient"]]
    assert len(first) == 8 and all(other == first for other in others)


def test_the_best_router_has_no_regret_and_others_wait_as_much_longer_as_their_runs_say(found):
    numbers = runs(found)
    seeds = sorted({seed for *_, seed in numbers})
    for seed in seeds:
        assert {numbers["omniscient", None, seed][key] for key in ("mean_regret_ms", "p99_regret_ms")} == {0.0}
    waits = {router: simulate(SCENARIO.with_values({"router": router})).history.requests.ttft
             for router in ("omniscient", "round_robin")}
    assert numbers["round_robin", None, 0]["mean_regret_ms"] == pytest.approx(
        1e3 * (waits["round_robin"] - waits["omniscient"]).mean())
    assert found.ranking[0].value("mean_regret_ms") <= found.ranking[-1].value("mean_regret_ms")


def test_routers_that_see_nothing_with_an_age_run_once_for_all_ages(found):
    ages = {(router_of(point), point.settings.get(STALENESS)) for point in found.points}
    aged = {(name, age) for name in NAMES[1:] for age in (0, "200ms")}
    assert ages == {("omniscient", None), ("round_robin", None), *aged}
    assert len(found.rows) == 2 * len(ages)


def test_the_order_of_the_routers_changes_nothing(found):
    assert runs(ksim.routers(SCENARIO, NAMES[::-1], AGES[1:], jobs=1)) == {
        key: numbers for key, numbers in runs(found).items() if key[1] != AGES[0] and key[2] == 0}


def test_a_comparison_goes_on_where_it_was_interrupted(found, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    asked = {"scenario": SCENARIO, "routers": NAMES[:1], "staleness": [0], "seeds": 2, "jobs": 1}
    with monkeypatch.context() as patched:
        patched.setattr("ksim.study.routers._held_against", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ksim.routers(**asked, output=tmp_path / "out")
    assert [row.status for row in RouterComparison.read(tmp_path / "out").rows] == ["ok", "ok", "not run", "not run"]
    again = runs(ksim.routers(**asked, output=tmp_path / "out", resume=True))
    assert again == {key: numbers for key, numbers in runs(found).items() if key in again} and len(again) == 4
    with pytest.raises(ConfigError, match="its repeat was 2, and now is 3"):
        ksim.routers(**asked | {"seeds": 3}, output=tmp_path / "out", resume=True)


def test_it_is_told_as_a_table_a_figure_and_in_a_notebook(found):
    lines = found.text.splitlines()
    assert lines[0].split()[:3] == ["router", "age", "mean"] and len(lines) == 2 + len(found.points)
    assert " ± " in found.text and "prefix_aware:load_tokens=0" in found.text
    assert found.plot().panels[0].x.title == "mean regret, ms"
    assert "prefix_aware" in found._repr_html_() and "8 runs of 3 routers, 2 seeds of each" in found._repr_html_()
    (panel,) = found.plot(STALENESS, "p90_ttft_ms", by="router").panels
    assert {line.x[-1] for line in panel.marks if len(line.x) == 2} == {200}
    json.dumps(found.records(), allow_nan=False)


def test_a_router_that_cannot_run_is_a_row_that_says_why():
    names = ["round_robin", "prefix_aware:load_tokens=-1"]
    comparison = ksim.routers(SCENARIO, names, jobs=1)
    assert len(comparison.ranking) == 2
    assert comparison.notes[1].startswith("prefix_aware:load_tokens=-1 did not run: prefix_aware: 'load_tokens' must")


def test_routers_of_pairs_are_compared_where_requests_are_split():
    comparison = ksim.routers(SPLIT, ["each_side", "least_loaded"], jobs=1)
    best = "each_side:prefill=omniscient:decode=omniscient"
    assert {router_of(point) for point in comparison.ranking} == {best, "each_side", "least_loaded"}
    assert {row.numbers["mean_regret_ms"] for row in comparison.points[0].rows} == {0.0}


@pytest.mark.parametrize("text, choice", [
    ("round_robin", Choice("round_robin")), ("mine.routers:Fair", Choice("mine.routers:Fair")),
    ("mine:Fair:weight=2:path=a:b", Choice("mine:Fair", {"weight": 2, "path": "a:b"})),
    ("llm_d:weights={queue=1,kv=2}", Choice("llm_d", {"weights": {"queue": 1, "kv": 2}})),
    ("dynamo_kv:temperature=0.5", Choice("dynamo_kv", {"temperature": 0.5}))])
def test_routers_are_written_as_names_with_options(text, choice):
    assert parsed(text) == choice and parsed(label(plain(choice))).name == choice.name


def test_commas_in_brackets_belong_to_a_router():
    assert listed("a, llm_d:weights={x=1,y=2},c") == ["a", "llm_d:weights={x=1,y=2}", "c"]


def test_a_router_without_options_has_those_of_the_scenario():
    scenario = SCENARIO.with_values({"router": {"name": "prefix_aware", "load_tokens": 7}})
    assert candidates(scenario, "router", ["prefix_aware"]) == [
        yardstick("router"), Choice("prefix_aware", {"load_tokens": 7})]
    assert {"round_robin", "least_outstanding"} < {choice.name for choice in candidates(SCENARIO, "router")}


@pytest.mark.parametrize("asked, error, message", [
    ({"routers": ["round_robin", "round_robin"]}, ConfigError, "--routers: round_robin comes twice"),
    ({"routers": ["roundrobin"]}, UnknownName, "did you mean 'round_robin'"),
    ({"routers": ["prefix_aware:load=1"]}, UnknownKey, "load: unknown key"),
    ({"seeds": 0}, ConfigError, "--seeds: expected at least 1"),
    ({"scenario": SCENARIO.with_values({"serve.data_parallel_size": 1})}, ConfigError, "needs several engines")])
def test_what_no_comparison_can_have_is_refused_before_anything_runs(asked, error, message, monkeypatch):
    monkeypatch.setattr("ksim.study.experiment.play", None)
    with pytest.raises(error, match=message):
        ksim.routers(**{"scenario": SCENARIO, "jobs": 1, **asked})


times = st.lists(st.floats(0, 100) | st.just(np.nan), min_size=1, max_size=8)


@given(times, times)
@examples(50)
def test_regret_counts_requests_that_both_runs_served(own, best):
    mine, others = (Waits(np.arange(len(ttft)), np.array(ttft)) for ttft in (own, best))
    both = [a - b for a, b in zip(own, best, strict=False) if not np.isnan(a - b)]
    assert mine.regret(others).tolist() == both
    assert regrets(mine, others)["mean_regret_ms"] == (pytest.approx(1e3 * np.mean(both)) if both else None)
    assert set(regrets(mine, mine).values()) <= {0.0, None}


def test_regret_to_the_last_token_has_columns_of_its_own():
    mine, others = (Waits(np.arange(2), np.array(ttft), np.array(e2e)) for ttft, e2e in (
        ([0.1, 0.2], [1.0, 3.0]), ([0.1, 0.1], [1.0, 1.0])))
    numbers = regrets(mine, others)
    assert numbers["mean_regret_ms"] == pytest.approx(50) and numbers["mean_latency_regret_ms"] == pytest.approx(1000)


def test_imbalance_is_that_of_the_most_unequal_pool():
    history = simulate(SPLIT).history
    computed = [history.steps.tokens[history.steps.engine == engine].sum() for engine in range(4)]
    spreads = [np.std(pool) / np.mean(pool) for pool in (computed[:2], computed[2:])]
    assert imbalance(history)["engine_tokens_cv"] == pytest.approx(max(spreads))
    assert key_of(SPLIT) == "pair_router" and imbalance(simulate(
        SCENARIO.with_values({"serve.data_parallel_size": 1})).history)["engine_tokens_cv"] is None


def test_a_plan_says_what_it_asks(found):
    plan = RoutersPlan.of(SCENARIO, NAMES, AGES, 2)
    assert plan.kind == "routers" and plan.command["over"]["router"][0] == "omniscient" and plan.command["repeat"] == 2
    assert [row.key for row in plan.rows] == [row.key for row in found.rows]


def told_of(*runs):
    """Points of made-up *runs*: router, age of its signals, mean regret in ms."""
    rows = [RunRow(place, 0, 0, {"router": name} if age is None else {"router": name, STALENESS: age}, OK,
                numbers={"mean_regret_ms": regret, "p90_ttft_ms": 100.0 + regret})
            for place, (name, age, regret) in enumerate(runs)]
    return ranked(points_of(rows))


def test_what_surprises_in_the_table_is_explained_beside_it():
    plain_ones = told_of(("omniscient", None, 0.0), ("random", None, 9.0))
    assert [*explained(plain_ones)] == []
    below, ageless, same = explained(told_of(
        ("omniscient", None, 0.0), ("random", None, 9.0), ("llm_d", 0, -1.0), ("llm_d", "200ms", -1.0),
        ("mooncake", 0, 3.0), ("mooncake", "200ms", 4.0)))
    assert below.startswith("a regret below 0: requests waited less than with omniscient")
    assert ageless.startswith("age -: what omniscient, random go by is never old")
    assert same.startswith("llm_d is the same at all ages")


def test_no_two_dots_of_the_figure_cover_each_other():
    ages = (0, "50ms", "200ms")
    points = told_of(("omniscient", None, 0.0), ("round_robin", None, 5.0),
                     *((name, age, 5.0) for name in ("llm_d", "mooncake") for age in ages))
    chart = picture("Routers", points)
    for panel in chart.panels:
        dots = [(x, y) for mark in panel.marks if isinstance(mark, Dots) for x, y in zip(mark.x, mark.y, strict=True)]
        assert len(dots) == len(points) and min(abs(a - b) for (_, a), (_, b) in combinations(dots, 2)) > 0.15
    assert "omniscient" not in chart.note
    assert "first tokens came sooner than with omniscient" in picture("R", told_of(("random", None, -1.0))).note

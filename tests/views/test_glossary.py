import re
from array import array
from collections.abc import Iterator
from pathlib import Path

from attrs import evolve

from ksim.flow.events import TIERS, Arrived, Chosen, RanksMet, Scaled, Seen
from ksim.flow.log import Log
from ksim.results.attribution import phases
from ksim.results.measured import routing_table
from ksim.results.numbers import NUMBERS, LatencyTargets, derived
from ksim.results.ranks import rank_rows
from ksim.results.scaling import replica_table, scaling_rows
from ksim.study import rows
from ksim.study.routers import Waits, imbalance, regrets
from ksim.views.result import Result
from tests.results import by_hand, fleet, ranks_by_hand

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")


def entries(heading: str) -> list[str]:
    """The names in the first column of the table under *heading*."""
    section = GLOSSARY.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_key_of_the_summary_is_explained():
    assert sorted(entries("summary.json")) == sorted(Result(by_hand.small(), {}, LatencyTargets()).summary)


def test_every_key_of_a_fleets_summary_is_explained():
    summary = Result(fleet.log(count=20)).summary
    assert sorted(entries("summary.json") + entries("summary.json of fleets")) == sorted(summary)
    for pool in summary["pools"].values():
        assert sorted(entries("summary.json, by pool")) == sorted(pool)


def test_every_key_of_a_fleet_that_is_scaled_is_explained():
    log = fleet.log(count=20)
    plain = Result(log).summary
    log.engines[:] = [evolve(built, life=((0.0, "warm"), (1e-3, "ready")), nodes=(0,), node_gpus=8)
                      for built in log.engines]
    more = Result(log).summary
    scaled = sorted(entries("summary.json of fleets that are scaled"))
    assert scaled == sorted(more.keys() - plain.keys())
    assert all(scaled == sorted(pool.keys() - plain["pools"][name].keys()) for name, pool in more["pools"].items())


def test_every_column_is_explained():
    result = Result(by_hand.small())
    for heading, table in (("requests.parquet", result.requests), ("steps.parquet", result.steps),
                           ("kernels.csv", result.kernels)):
        assert sorted(entries(heading)) == sorted(table.column_names)
    assert sorted(entries("requests.parquet") + entries("requests.parquet of fleets")) == sorted(
        Result(fleet.log(count=20)).requests.column_names)


def test_every_column_of_a_routers_choices_is_explained():
    views = {"outstanding": [1], "outstanding_tokens": [9], "prefill_tokens": [9]}
    metrics = {"waiting": [0], "running": [1], "kv_usage": [0.5], "scraped_s": [0.0]}
    seen = Seen([0], views, metrics, array("i", [-1]), array("d", [1.0]))
    table = routing_table(Log(events=[Chosen(0.1, 7, 0, 0, -1, seen)]))
    assert sorted(entries("routing.parquet")) == sorted(table.column_names)
    assert table["prefix_hit_tokens"].to_pylist() == [[None]] and table["prefill_engine"].to_pylist() == [None]


def test_every_column_of_a_fleet_that_is_scaled_is_explained():
    assert sorted(entries("scaling.parquet")) == sorted(scaling_rows(Log().columns(Scaled)).column_names)
    assert sorted(entries("replicas.parquet")) == sorted(replica_table([], 0.0).column_names)


def test_what_speculation_adds_is_explained():
    small, drafted = by_hand.small(), by_hand.small()
    drafted.engines = [evolve(built, drafted=2) for built in drafted.engines]
    plain, more = Result(small, {}, LatencyTargets()), Result(drafted, {}, LatencyTargets())
    assert {*entries("summary.json with speculative decoding")} == {*more.summary} - {*plain.summary}
    for heading, before, after in (("requests.parquet", plain.requests, more.requests),
                                   ("steps.parquet", plain.steps, more.steps)):
        added = {*after.column_names} - {*before.column_names}
        assert {*entries(f"{heading} with speculative decoding")} == added


def test_what_a_gateway_adds_is_explained():
    small = by_hand.small()
    gated = Log(small.engines, (evolve(event, request=evolve(event.request, tenant="a")) if isinstance(event, Arrived)
                                else event for event in small.events))
    gated.gated = True
    plain, more = Result(small, {}, LatencyTargets()), Result(gated, {}, LatencyTargets())
    assert {*entries("summary.json with a gateway")} == {*more.summary} - {*plain.summary}
    assert {*entries("requests.parquet with a gateway")} == {*more.requests.column_names} - {
        *plain.requests.column_names}


def test_what_tiers_add_is_explained():
    small, offloading = by_hand.small(), by_hand.small()
    offloading.engines = [evolve(built, tiers=TIERS) for built in offloading.engines]
    plain, more = Result(small, {}, LatencyTargets()), Result(offloading, {}, LatencyTargets())
    assert {*entries("summary.json with tiers")} == {*more.summary} - {*plain.summary}
    assert {*entries("requests.parquet with tiers")} == {*more.requests.column_names} - {*plain.requests.column_names}


def test_what_ranks_add_is_explained():
    plain, more = Result(by_hand.small(), {}, LatencyTargets()), Result(ranks_by_hand.small(), {}, LatencyTargets())
    assert {*entries("summary.json with ranks")} == {*more.summary} - {*plain.summary}
    assert entries("ranks.parquet") == rank_rows(more.log.columns(RanksMet)).column_names


def test_every_column_of_a_study_is_explained():
    result = Result(by_hand.small())
    routers = imbalance(result.history) | regrets(Waits.of(result), None)
    assert sorted(entries("Numbers of studies")) == sorted(
        (*rows.FIRST, *rows.THEN, *rows.LAST, *derived(result.summary), *routers))


def test_every_phase_is_explained():
    assert entries("attribution.parquet") == ["id", *phases(["FAMILY"], fleet=True, adapters=True, tiers=True)]


def test_every_plot_is_explained(tmp_path):
    scaled = fleet.log(count=20)
    scaled.engines[:] = [evolve(built, life=((0.0, "ready"),)) for built in scaled.engines]
    plain, found = Result(ranks_by_hand.small()).plots(tmp_path), Result(scaled).plots(tmp_path)
    names = {*(path.name for path in plain), *(path.name.replace("prefill", "POOL") for path in found)}
    assert {*entries("plots")} == names - {"composition-decode.png"}


def units(section: str) -> Iterator[tuple[str, str]]:
    """The keys of the tables in a section, with what stands in their second column."""
    for line in section.splitlines():
        if line.startswith("| `"):
            yield from ((key, line.split("|")[2].strip()) for key in re.findall(r"`([^`]+)`", line.split("|")[1]))


def test_every_number_is_explained_with_its_unit():
    sections = [section for section in GLOSSARY.split("\n## ") if section.startswith(("summary.json", "Numbers of"))]
    found = [pair for section in sections for pair in units(section)]
    assert NUMBERS.keys() - {"aborted"} <= {key for key, _ in found}
    assert not [(key, unit) for key, unit in found if unit and NUMBERS.get(key) and
                NUMBERS[key].unit not in unit.split(", ")]


def test_every_number_of_a_run_and_of_its_pools_has_a_title():
    summary = Result(fleet.log(count=20)).summary
    for numbers in (summary, *summary["pools"].values()):
        counted = {key for key, value in numbers.items() if value is None or type(value) in (int, float)}
        assert not {key for key in counted - NUMBERS.keys() if not key.startswith("slo_")}

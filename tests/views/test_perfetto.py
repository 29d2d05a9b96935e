import gzip
import json
from collections import defaultdict
from functools import cache
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest

from ksim.flow.log import Log
from ksim.results.history import History
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.views import perfetto
from ksim.views.perfetto import ranks as rank_views
from ksim.views.perfetto import trace, write_trace
from ksim.views.perfetto.requests import BEFORE, DECODE, PREEMPTED, PREFILL, QUEUED, _arrivals, phases
from tests.results import by_hand, fabricate, fleet, ranks_by_hand
from tests.results.fleet import by_hand as by_hand_split
from tests.results.ranks_by_hand import SLOW


@cache
def load(log: Log, window=None) -> dict:
    return json.loads(b"".join(trace(History(log), window)))


def slices(events: list[dict]) -> dict[tuple[int, int], list[dict]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


FLEETS = [fleet.log(count=25, rate=60, preempt_every=9), fleet.log(count=25, rate=600, style=fleet.Style(True, True)),
          fleet.log(count=25, rate=60, style=fleet.Style(hands_over=True), decode_first=True)]
LOGS = [by_hand.small(), *FLEETS, fabricate.log(count=20), fabricate.log(count=12, ranks=2, engines=2),
        fabricate.pipelined(), fabricate.cut(fabricate.log(count=20), 1.0), by_hand.overlapped(), Log(),
        Log([by_hand.ENGINE]), ranks_by_hand.small(), ranks_by_hand.moved()]


@pytest.mark.parametrize("log", LOGS)
def test_slices_on_a_track_follow_one_another(log):
    for track in slices(load(log)["traceEvents"]).values():
        # Perfetto reads nanoseconds; compare in them.
        spans = [(round(1e3 * event["ts"]), round(1e3 * event["dur"])) for event in track]
        assert all(duration >= 0 for _, duration in spans)
        for (begin, duration), (following, _) in pairwise(spans):
            assert begin + duration <= following


@pytest.mark.parametrize("log", LOGS)
def test_request_spans_nest_and_close(log):
    open_spans: dict[int, list[str]] = defaultdict(list)
    last: dict[int, float] = defaultdict(float)
    for event in load(log)["traceEvents"]:
        if event["ph"] not in ("b", "e"):
            continue
        assert event["ts"] >= last[event["id"]]
        last[event["id"]] = event["ts"]
        if event["ph"] == "b":
            open_spans[event["id"]].append(event["name"])
        else:
            assert open_spans[event["id"]].pop() == event["name"]
    assert not any(open_spans.values())


@pytest.mark.parametrize("log", LOGS)
def test_counters_go_forward(log):
    tracks = defaultdict(list)
    for event in load(log)["traceEvents"]:
        if event["ph"] == "C":
            tracks[event["pid"], event["name"]].append(event["ts"])
    assert all(times == sorted(times) for times in tracks.values())


def test_watts_of_the_small_log_fall_while_its_gpus_sleep():
    watts = [(event["ts"] / 1e6, event["args"]["value"]) for event in load(by_hand.sleepy())["traceEvents"]
             if event["name"] == "watts"]
    assert watts[:5] == [(0.0, 200), (0.25, 80), (1.5, 320), (2.0, 200), (2.25, 80)]


def test_kernels_of_the_small_log():
    events = load(by_hand.small())["traceEvents"]
    tracks, names = slices(events), {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranks = [tracks[track] for track in sorted(tracks) if names[track[1]].startswith("rank")]
    assert len(ranks) == 2
    assert [{**event, "tid": 0} for event in ranks[0]] == [{**event, "tid": 0} for event in ranks[1]]
    kernels = [(event["name"], event["ts"], event["dur"]) for event in ranks[0][:4]]
    assert kernels == [("qkv", 1.5e6, 0.1e6), ("attention", 1.6e6, 0.15e6), ("qkv", 1.75e6, 0.1e6),
                       ("attention", 1.85e6, 0.15e6)]
    assert ranks[0][0]["args"] == {"shape": "8x8", "launch": "128x128", "bound": "compute", "waves": 1.5,
                                   "idle_sms": 0.5, "flops": 50, "bytes": 2}


def test_kernels_side_by_side_are_on_two_tracks_of_each_rank():
    events = load(by_hand.overlapped())["traceEvents"]
    tracks, names = slices(events), {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    found = {names[tid]: [(event["name"], event["ts"] / 1e6, event["dur"] / 1e6) for event in track[:2]]
             for (_, tid), track in tracks.items()}
    for rank in ("rank 0", "rank 1"):
        assert found[rank] == [("qkv", 1.0, 0.2), ("qkv", 1.2, 0.2)]
        assert found[f"{rank}, communication"] == [("sum", 1.2, 0.1), ("sum", 1.4, 0.1)]
    assert [names[tid] for tid in sorted(order, key=lambda tid: (order[tid], tid)) if "rank" in names.get(tid, "")] == [
        "rank 0", "rank 0, communication", "rank 1", "rank 1, communication"]
    assert {event["args"]["sms"] for track in tracks.values() for event in track if "waves" in event["args"]} == {1, 3}


def of_ranks(log: Log, window=None) -> tuple[dict, list[dict]]:
    """The slices of each rank, as (name, begin, seconds), and the arrows between ranks."""
    events = load(log, window)["traceEvents"]
    named, tracks = track_names(events), slices(events)
    process = next((e["pid"] for e in events if e["name"] == "process_name" and "ranks:" in e["args"]["name"]), None)
    shown = {name: [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in tracks[track]]
             for track, name in named.items() if track[0] == process}
    return shown, [event for event in events if event["ph"] in "sf" and event["cat"] == "ranks"]


def test_each_rank_computes_waits_and_meets_others():
    shown, arrows = of_ranks(ranks_by_hand.small())
    assert shown == {
        "GPU 0, engine 4": [("computing", 1.5, 0.3), ("waiting", 1.8, 0.1), ("sum", 1.9, 0.05),
                            ("computing", 1.95, 0.05)],
        "GPU 1, engine 4": [("computing", 1.5, 0.4), ("sum", 1.9, 0.05), ("computing", 1.95, 0.05)]}
    assert [(event["ph"], event["tid"]) for event in arrows] == [("s", 2), ("f", 1)]
    assert all(event["ts"] == pytest.approx(1.9e6, abs=0.2) for event in arrows)


def test_ranks_have_counters_of_what_share_of_a_step_they_wait():
    waiting = [(event["ts"] / 1e6, event["args"]["value"]) for event in load(ranks_by_hand.small())["traceEvents"]
               if event["name"].startswith("waiting, %")]
    assert waiting == [(1.5, 10), (3.5, 0)]


def test_a_window_chooses_the_steps_of_ranks_too():
    shown, arrows = of_ranks(ranks_by_hand.small(), (2.2, 3.0))
    assert not any(shown.values()) and not arrows
    assert of_ranks(by_hand.small()) == ({}, [])


def test_rearrangements_of_experts_have_tracks_of_their_own():
    log = ranks_by_hand.moved()
    shown, _ = of_ranks(log)
    assert list(shown)[-2:] == ["EPLB, engine 4", "EPLB, engine 4, stage 1"]
    assert shown["EPLB, engine 4"] == [("rearrange experts", 2.0, 0.25), ("rearrange experts", 3.0, 0.5)]
    assert shown["EPLB, engine 4, stage 1"] == [("rearrange experts", 2.0, 0.5)]
    assert shown["GPU 0, engine 4"] == of_ranks(ranks_by_hand.small())[0]["GPU 0, engine 4"]
    first = next(event for event in load(log)["traceEvents"] if event["name"] == "rearrange experts")
    assert first["args"] == {"experts": 3, "bytes": 3000, "fullest_before": 1.5, "fullest_after": 1.125}
    assert not any(name.startswith("EPLB") for name in of_ranks(ranks_by_hand.small())[0])


@pytest.mark.parametrize("budget", [1, 5_000])
def test_arrows_of_ranks_are_few_and_lie_within_slices(budget):
    """From where the last one computes to where another waits; of ranks that are alike, to one of them."""
    result = simulate(Scenario.of(SLOW))
    with mock.patch.multiple(rank_views, BUDGET=9 * budget, ARROWS=budget):
        events = json.loads(b"".join(trace(result.history)))["traceEvents"]
    tracks = slices([event for event in events if event.get("cat") == "ranks"])
    arrows = [event for event in events if event["ph"] in "sf" and event["cat"] == "ranks"]
    assert 0 < len(arrows) // 2 <= budget
    found = [next(s["name"] for s in tracks[event["pid"], event["tid"]] if s["ts"] <= event["ts"] <= s["ts"] + s["dur"])
             for event in arrows]
    assert found == ["computing", "waiting"] * (len(arrows) // 2)
    assert {event["tid"] for event in arrows if event["ph"] == "s"} == {3}, "GPU 2 is the slow one"
    assert [event["id"] for event in arrows] == [number // 2 for number in range(len(arrows))]


def test_steps_carry_their_batch():
    step = next(event for event in load(by_hand.small())["traceEvents"] if event["name"] == "mixed")
    assert (step["ts"], step["dur"]) == (2.5e6, 0.5e6)
    assert step["args"] == {"step": 1, "tokens": 21, "decodes": 1, "prefills": 1, "samples": 2, "waiting": 1,
                            "running": 2, "kv_blocks": 3}


def track_names(events: list[dict]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


@pytest.mark.parametrize("log", LOGS)
def test_every_track_with_slices_has_a_name(log):
    events = load(log)["traceEvents"]
    named = {e["pid"] for e in events if e["name"] == "process_name"}
    assert slices(events).keys() <= track_names(events).keys()
    assert {e["pid"] for e in events} <= named


@pytest.mark.parametrize("log", LOGS)
def test_arrows_of_a_request_begin_at_its_arrival_and_bind_to_steps(log):
    """Perfetto binds an arrow to the slice around its time on its thread, and joins those of one name, category and
    id."""
    events = load(log)["traceEvents"]
    tracks, arrows = slices(events), defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "t", "f") and event["cat"] != "ranks":
            assert (event["name"], event["cat"]) == ("request", "request")
            arrows[event["id"]].append(event)
    completed = {event["id"] for event in events if event["name"] == "request" and event["ph"] == "b"
                 and event["args"]["status"] == "completed"}
    assert completed <= arrows.keys()
    for request, chain in arrows.items():
        assert [event["ph"] for event in chain] == ["s", *["t"] * (len(chain) - 2), "f"]
        assert chain[-1]["bp"] == "e" and sorted(event["ts"] for event in chain) == [event["ts"] for event in chain]
        bound = [next(s for s in tracks[event["pid"], event["tid"]] if s["ts"] <= event["ts"] <= s["ts"] + s["dur"])
                 for event in chain]
        assert bound[0]["name"] == f"request {request}"
        assert all(s["name"] in ("decode", "mixed", "prefill", f"request {request}") for s in bound[1:])


def test_arrows_go_to_the_steps_of_a_requests_first_and_last_token():
    events = load(by_hand.small())["traceEvents"]
    steps = {event["ts"] + event["dur"] / 2: event["args"]["step"] for event in events
             if event["ph"] == "X" and event["name"] in ("decode", "mixed", "prefill")}
    targets = {request: [steps[event["ts"]] for event in events if event["ph"] in ("t", "f")
                         and event["id"] == request] for request in (7, 8, 9)}
    assert targets == {7: [0, 2], 8: [1], 9: []}


@pytest.mark.parametrize("log", FLEETS)
def test_a_split_requests_arrow_goes_from_its_prefill_through_its_transfer_to_its_decode(log):
    events, splits = load(log)["traceEvents"], History(log).splits
    tracks, names, requests = slices(events), track_names(events), splits.requests
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for number, source, target, moved in zip(requests.ids[splits.row], splits.source, splits.target,
                                             ~np.isnan(splits.admitted), strict=True):
        stops = [(process[e["pid"]].split(":")[0], e["tid"]) for e in events
                 if e["ph"] in ("t", "f") and e["id"] == number]
        if moved:
            engines = [engine for engine, _ in stops]
            place = engines.index("KV transfers")
            assert {*engines[:place]} == {f"engine {source}, prefill"}
            assert {*engines[place + 1:]} == {f"engine {target}, decode"}
    transfers = [pid for pid, name in process.items() if name == "KV transfers"]
    shown = [event for track in tracks for event in tracks[track] if track[0] in transfers]
    assert len(shown) == (~np.isnan(splits.loaded)).sum() and sum(e["args"]["bytes"] for e in shown) == np.nansum(
        splits.bytes)
    assert {name.split()[0] for track, name in names.items() if track[0] in transfers} == {"from"}


def test_links_have_counters_of_what_they_carry():
    log = by_hand_split()
    counted = [(event["name"], event["ts"] / 1e6, event["args"]["value"]) for event in load(log)["traceEvents"]
               if event["ph"] == "C" and event["name"] == "NIC"]
    assert counted == [("NIC", 5.25, 500), ("NIC", 7.25, 0)]


def test_a_split_request_is_between_engines_after_its_prefill():
    spans = [(event["name"], event["ph"], event["ts"] / 1e6) for event in load(by_hand_split())["traceEvents"]
             if event["ph"] in ("b", "e")]
    assert spans[1:-1] == [("before the engine", "b", 0.0), ("before the engine", "e", 0.5),
                           ("queued", "b", 0.5), ("queued", "e", 1.75), ("prefill", "b", 1.75), ("prefill", "e", 3.0),
                           ("between engines", "b", 3.0), ("between engines", "e", 7.75), ("decode", "b", 7.75),
                           ("decode", "e", 11.5)]


def test_requests_that_arrive_at_once_have_arrivals_side_by_side():
    begin, lasts = _arrivals(np.array([0, 0, 0, 50, 5_000_000]))
    assert begin.tolist() == [0, 100, 200, 300, 5_000_000] and lasts.tolist() == [100, 100, 100, 1_000_000, 1_000_000]


def test_the_host_schedules_before_the_gpus_work_and_takes_in_after():
    events = load(by_hand.small())["traceEvents"]
    tracks, names = slices(events), track_names(events)
    host = {names[track].removeprefix("host: "): [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6, e["args"]["step"])
                                                  for e in tracks[track]]
            for track in tracks if names[track].startswith("host")}
    assert host == {
        "schedule and prepare": [("schedule", 1.0, 0.5, 0), ("schedule", 2.25, 0.25, 1), ("schedule", 3.25, 0.25, 2)],
        "take in tokens": [("take in", 2.0, 0.25, 0), ("take in", 3.0, 0.25, 1), ("take in", 4.0, 0.5, 2)]}


def test_model_and_gpu_are_in_the_names_of_processes():
    document = json.loads(b"".join(trace(History(by_hand.small()), None, "tiny-lm", "tiny-lm on 2 x toy, TP 2")))
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert names == ["requests: tiny-lm on 2 x toy, TP 2", "engine 4: tiny-lm on 2 x toy"]


@pytest.mark.parametrize(("window", "marked"), [(None, []), ((2.6, 2.7), [("begin", 2.5), ("end", 3.0)]),
                                                ((0.0, 2.1), [("end", 2.0)])])
def test_marks_say_where_kernels_begin_and_end(window, marked):
    events = load(by_hand.small(), window)["traceEvents"]
    names = track_names(events)
    for rank in ("rank 0", "rank 1"):
        assert [(event["name"].split()[1], event["ts"] / 1e6) for event in events
                if event["ph"] == "i" and names[event["pid"], event["tid"]] == rank] == marked


def test_stages_of_a_pipeline_work_side_by_side():
    log = fabricate.pipelined()
    tracks = slices(load(log)["traceEvents"])
    first, second = tracks[2, 1], tracks[2, 2]
    assert len(first) == len(second) == 6
    for early, late in zip(first, second, strict=True):
        assert late["ts"] >= early["ts"] + early["dur"] - 1e-3
    # The second step is on the first stage while the first is on the second.
    assert first[1]["ts"] < second[0]["ts"] + second[0]["dur"]


def test_phases_of_requests():
    """One is preempted, one never admitted, one never gets a token, and one gets its last with its admission."""
    moves = (np.array([0, 2, 0, 0, 3, 3]), np.array([1.0, 1.0, 6.0, 4.0, 2.0, 2.0]),
             np.array([True, True, True, False, True, False]))
    tokens, first = np.array([2.0, 3.0, 7.0, 8.0, 2.0]), np.array([0, 4, 4, 4, 5])
    received, ends = np.array([0.0, 0.5, 0.0, 0.0]), np.array([8.0, 5.0, 5.0, 2.0])
    found = phases(np.zeros(4), received, moves, tokens.__getitem__, first, ends)
    columns = (found.row.tolist(), found.name.tolist(), found.begin.tolist(), found.end.tolist())
    assert list(zip(*columns, strict=True)) == [
        (0, QUEUED, 0.0, 1.0), (0, PREFILL, 1.0, 2.0), (0, DECODE, 2.0, 4.0), (0, PREEMPTED, 4.0, 6.0),
        (0, PREFILL, 6.0, 7.0), (0, DECODE, 7.0, 8.0), (1, BEFORE, 0.0, 0.5), (1, QUEUED, 0.5, 5.0),
        (2, QUEUED, 0.0, 1.0), (2, PREFILL, 1.0, 5.0), (3, QUEUED, 0.0, 2.0), (3, PREEMPTED, 2.0, 2.0),
        (3, PREFILL, 2.0, 2.0)]


def test_a_window_shows_the_kernels_of_its_steps_only():
    document = load(by_hand.small(), window=(2.6, 2.7))
    kernels = [event for event in document["traceEvents"] if event.get("cat") in ("gemm", "attention")]
    assert {event["ts"] for event in kernels} == {2.5e6, 2.6e6, 2.75e6, 2.85e6}
    assert document["otherData"] == {"kernel_slices": 8, "kernel_slices_left_out": 16}


def test_slices_beyond_the_budgets_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(perfetto, "KERNEL_BUDGET", 20)
    monkeypatch.setattr(perfetto, "EVENT_BUDGET", 20)
    document = load(by_hand.small())
    assert document["otherData"]["kernel_slices"] == 16
    assert "one in 3" in document["otherData"]["note"]
    assert len([event for event in document["traceEvents"] if event["ph"] == "X" and event.get("tid") == 1
                and event["pid"] > 1]) == 1


def test_the_file_is_the_same_each_time(tmp_path):
    files = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    for file in files:
        write_trace(History(fabricate.log(count=10)), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads(gzip.decompress(files[0].read_bytes()))["displayTimeUnit"] == "ms"

"""How replicas end: grace periods, requests that are cut off, and rolling updates."""

import json
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksim.features.autoscaling import AutoscalingFeature
from ksim.flow.events import Admitted, Emitted, Failed, Finished, Preempted, Refused, Rejected, Routed
from ksim.foundation.errors import ConfigError
from ksim.results.attribution import mean_phases
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate, stream

#: Two replicas, one from 2 s on, and two again from 6 s on.
SIZES = {"name": "perfect", "interval": "1 s", "sizes": {"a": [[0.0, 2], [2.0, 1], [6.0, 2]]}}
COUNT, OUTPUT = 12, 900


def table(count=COUNT, rate=5.0, engine="vllm-0.33", autoscaler=SIZES, places=2, **ends):
    return {"model": "llama-3.1-8b", "gpu": "h200", "router": "round_robin", "engine": engine,
            "serve": {"sglang": {"context_length": 4096}} if engine.startswith("sglang") else {"max_model_len": 4096},
            "startup": {"name": "default", "mode": "sleep_1"}, "lifecycle": ends,
            "pools": {"a": {"role": "both", "replicas": 2, "max_replicas": places}},
            "workload": {"synthetic": {"count": count, "arrivals": {"process": "constant", "rate": rate},
                                       "prompt": {"kind": "fixed", "value": 200},
                                       "output": {"kind": "fixed", "value": OUTPUT}}},
            **({"autoscaler": autoscaler} if autoscaler else {})}


def served(*args, **more):
    return simulate(Scenario.of(table(*args, **more)))


def tokens(result):
    """The tokens that the user of each request has got."""
    got = {}
    for run in result.log.of(Emitted):
        steps = (run.last - run.first) // (run.every or 1) + 1
        got[run.request_id] = got.get(run.request_id, 0) + steps * run.tokens
    return got


def gone(result, engine=1):
    return next(moment for moment, state in result.log.engines[engine].life if state == "gone")


def test_draining_loses_nothing():
    result = served()
    assert tokens(result) == dict.fromkeys(range(COUNT), OUTPUT)
    assert gone(result) > 4.5


def test_a_grace_period_cuts_off_what_it_does_not_cover():
    result = served(termination_grace_period="2 s")
    failed = list(result.log.of(Failed))
    assert gone(result) == pytest.approx(4.0) and [one.time for one in failed] == pytest.approx([4.0] * len(failed))
    assert "grace period" in failed[0].reason
    ended = sorted([one.request_id for kind in (Finished, Failed) for one in result.log.of(kind)])
    assert ended == list(range(COUNT))
    assert all(0 <= tokens(result).get(one.request_id, 0) < OUTPUT for one in failed)
    assert result.summary["failed"] == len(failed)


@pytest.mark.parametrize("engine", ["vllm-0.33", "sglang-0.5.23"])
def test_a_request_that_migrates_goes_on_where_its_user_is(engine):
    result = served(termination_grace_period="2 s", migration_limit=1, engine=engine)
    moved = [one.request_id for one in result.log.of(Preempted) if one.engine == 1]
    assert moved and not list(result.log.of(Failed))
    assert tokens(result) == dict.fromkeys(range(COUNT), OUTPUT)
    for request in moved:
        assert [one.engine for one in result.log.of(Routed) if one.request_id == request] == [1, 0]
        first, again = (one for one in result.log.of(Admitted) if one.request_id == request)
        assert not first.again and again.again and again.known > first.known


def test_phases_of_requests_that_migrate_add_up():
    result = served(termination_grace_period="2 s", migration_limit=1)
    phases = mean_phases(result.attribution, result.requests)
    assert phases["mean_tpot_ms"]["preemption"] > 0


@pytest.mark.parametrize("limit", [0, 1])
def test_a_streamed_run_says_the_same(limit, tmp_path):
    made = table(termination_grace_period="2 s", migration_limit=limit)
    made["workload"]["retries"] = {"max_retries": 1}
    scenario = Scenario.of(made)
    kept, streamed = simulate(scenario).summary, stream(scenario, tmp_path / "run").summary
    assert streamed.keys() == kept.keys()
    numbers = {key: value for key, value in streamed.items() if isinstance(value, float)}
    assert numbers == pytest.approx({key: kept[key] for key in numbers}, rel=0.02)


def test_a_hook_delays_the_end_and_is_part_of_the_grace_period():
    assert gone(served(count=2, pre_stop="6 s")) == pytest.approx(8.0)
    assert gone(served(termination_grace_period="1 s", pre_stop="9 s")) == pytest.approx(2.0 + 3.0)


def test_one_that_is_cut_off_too_often_fails():
    sizes = {**SIZES, "sizes": {"a": [[0.0, 2], [2.0, 1], [4.1, 0], [7.0, 2]]}, "interval": "100 ms"}
    kept, lost = (served(termination_grace_period="2 s", migration_limit=limit, autoscaler=sizes) for limit in (2, 1))
    assert not list(kept.log.of(Failed)) and tokens(kept) == dict.fromkeys(range(COUNT), OUTPUT)
    assert list(lost.log.of(Failed))


def sent_again(retries, sizes=SIZES, sequences=None, **ends):
    made = table(termination_grace_period="2 s", autoscaler=sizes, **ends)
    made["workload"]["retries"] = {"max_retries": retries, "initial_delay": "0.5 s", "jitter": 0.0}
    made["workload"]["synthetic"] |= sequences or {}
    return simulate(Scenario.of(made))


def test_a_client_sends_again_what_was_cut_off_from_its_beginning():
    result = sent_again(retries=1)
    cut = [one.request_id for one in result.log.of(Refused)]
    assert cut and not list(result.log.of(Failed)) and result.summary["completed"] == COUNT
    assert result.summary["retries"] == len(cut)
    had, lost = tokens(result), tokens(served(termination_grace_period="2 s"))
    requests = result.requests.to_pydict()
    for request in range(COUNT):
        assert had[request] == OUTPUT + (lost[request] if request in cut else 0) == requests["output_tokens"][request]
        assert requests["attempts"][request] == 1 + (request in cut)
    for request in cut:
        first, again = (one.time for one in result.log.of(Routed) if one.request_id == request)
        assert again == pytest.approx(4.5, abs=0.05) and requests["ttft_s"][request] < 4.0 - first


@pytest.mark.parametrize(("sequences", "streamed"), [({"n": 3}, 3), ({"beam_width": 2}, 0)])
def test_a_client_sends_again_what_has_several_sequences_and_does_not_move(sequences, streamed):
    lost, again = (sent_again(retries, sequences=sequences, count=2, migration_limit=9) for retries in (0, 1))
    cut = [one.request_id for one in lost.log.of(Failed)]
    assert cut and [one.request_id for one in again.log.of(Refused)] == cut
    assert again.summary["completed"] == 2
    had, once = again.requests["output_tokens"].to_pylist(), next(
        count for request, count in enumerate(again.requests["output_tokens"].to_pylist()) if request not in cut)
    for request in cut:  # users of beams have no token before the end
        assert (had[request] > once) == bool(streamed) and had[request] >= once
    phases = mean_phases(again.attribution, again.requests)
    assert sum(phases["mean_ttft_ms"].values()) == pytest.approx(again.summary["mean_ttft_ms"])


@pytest.mark.parametrize("grace", ["2.010 s", "2.015 s", "2.023 s"])
@pytest.mark.parametrize("ends", [{"migration_limit": 9}, {}])
def test_phases_add_up_where_a_request_is_cut_off_after_the_last_step_of_its_engine(grace, ends):
    made = table(count=4, termination_grace_period=grace, **ends)
    made["serve"]["async_scheduling"], made["workload"]["retries"] = False, {"max_retries": 1}
    result = simulate(Scenario.of(made))
    assert sum(mean_phases(result.attribution, result.requests)["mean_tpot_ms"].values()) == pytest.approx(
        result.summary["mean_tpot_ms"])
    last = result.history.steps.ended[result.history.steps.rows(1)].max()
    assert (last < gone(result)) == (grace != "2.015 s")


def test_one_that_was_cut_off_more_often_than_its_client_tries_fails():
    sizes = {**SIZES, "sizes": {"a": [[0.0, 2], [2.0, 1], [4.6, 0], [8.0, 2]]}, "interval": "100 ms"}
    kept, lost = (sent_again(retries, sizes) for retries in (3, 1))
    assert not list(kept.log.of(Failed)) and list(lost.log.of(Failed))
    assert kept.summary["completed"] == COUNT == lost.summary["completed"] + lost.summary["failed"]


def test_a_request_moves_before_its_client_sends_it_again():
    sizes = {**SIZES, "sizes": {"a": [[0.0, 2], [2.0, 1], [4.6, 0], [8.0, 2]]}, "interval": "100 ms"}
    result = sent_again(3, sizes, migration_limit=1)
    twice = {one.request_id for one in result.log.of(Refused)}
    assert twice and all(sum(one.request_id == request for one in result.log.of(Routed)) == 3 for request in twice)
    assert all(got == OUTPUT or request in twice for request, got in tokens(result).items())


def test_phases_and_joules_of_what_is_sent_again_add_up():
    result = sent_again(retries=1)
    phases, summary = mean_phases(result.attribution, result.requests), result.summary
    assert phases["mean_tpot_ms"]["preemption"] > 0
    for name in ("mean_ttft_ms", "mean_tpot_ms"):
        assert sum(phases[name].values()) == pytest.approx(summary[name])
    # Tokens in flight at the end of an engine are nobody's.
    assert 0 <= summary["unattributed_energy_joules"] < 0.005 * summary["energy_joules"]


@settings(max_examples=5)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.sampled_from(["0 s", "1 s", "3 s", None]),
       st.integers(0, 3), st.integers(0, 2))
def test_each_request_ends_once_and_keeps_its_tokens(sizes, grace, limit, retries):
    steps = [[float(number), size] for number, size in enumerate((*sizes, 1))]
    ends = {} if grace is None else {"termination_grace_period": grace, "migration_limit": limit}
    made = table(autoscaler={"name": "perfect", "interval": "1 s", "sizes": {"a": steps}}, **ends)
    made["workload"] |= {"retries": {"max_retries": retries}} if retries else {}
    result = simulate(Scenario.of(made))
    done, failed, rejected = (result.log.columns(kind)["request_id"].tolist() for kind in (Finished, Failed, Rejected))
    assert sorted([*done, *failed, *rejected]) == [*range(COUNT)]
    got, again = tokens(result), {one.request_id for one in result.log.of(Refused)}
    assert all(got[request] == OUTPUT or (request in again and got[request] > OUTPUT) for request in done)
    assert all(got.get(request, 0) < OUTPUT or request in again for request in failed)
    assert result.summary["total_output_tokens"] == sum(got[request] for request in done)


def counted(made):
    """A run, and what was counted at its gateway by the end."""
    clusters, begin = [], AutoscalingFeature.begin

    def begun(feature, running):
        clusters.append(running.cluster)
        begin(feature, running)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoscalingFeature, "begin", begun)
        result = simulate(Scenario.of(made))
    clusters[0].sight.books.look(inf)
    return result, clusters[0].gateway.scaler.totals


@settings(max_examples=5)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.sampled_from(["0 s", "1 s", "3 s"]), st.integers(0, 3))
def test_autoscalers_see_the_tokens_that_users_have_got(sizes, grace, limit):
    steps = [[float(number), size] for number, size in enumerate((*sizes, 1))]
    result, seen = counted(table(autoscaler={"name": "perfect", "interval": "1 s", "sizes": {"a": steps}},
                                 termination_grace_period=grace, migration_limit=limit))
    got = tokens(result)
    assert (seen.ended, seen.begun, seen.output_tokens) == (len(got), len(got), sum(got.values()))
    assert seen.gaps == result.summary["completed"] * (OUTPUT - 1)
    if result.summary["completed"] == COUNT:
        requests = result.history.requests
        first, last = requests.first_token - requests.arrival, requests.last_token - requests.first_token
        assert (seen.ttft, seen.itl) == pytest.approx((first.sum(), last.sum()))


def test_autoscalers_see_what_users_had_that_hung_up(tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrival": 0.1 * number, "prompt": 200, "output": OUTPUT, "aborted": 1 + number % 2 * 60}
             for number in range(COUNT)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result, seen = counted({**table(autoscaler={**SIZES, "sizes": {"a": [[0.0, 2]]}}),
                            "workload": {"replay": {"path": str(trace)}}})
    got = tokens(result)
    assert result.summary["completed"] == COUNT / 2 and len({*got.values()}) > 1
    assert (seen.ended, seen.output_tokens) == (COUNT, sum(got.values()))


def test_a_replica_goes_once_clients_have_hung_up_and_their_requests_end_once(tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrival": 0.1 * number, "prompt": 200, "output": 3000, "aborted": 2.5} for number in range(4)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = simulate(Scenario.of({**table(termination_grace_period="20 s"), "workload": {
        "max_concurrency": 3, "replay": {"path": str(trace)}}}))
    assert sorted(one.request_id for one in result.log.of(Failed)) == [0, 1, 2, 3]
    assert gone(result) == pytest.approx(max(one.time for one in result.log.of(Failed) if one.engine == 1))


def split(pool, connector, **ends):
    """Pools p and d of prefill and decode, of which *pool* loses a replica for a while."""
    sizes = {name: SIZES["sizes"]["a"] if name == pool else [[0.0, 2]] for name in "pd"}
    made = table(autoscaler={**SIZES, "sizes": sizes}, rate=8.0, **ends)
    made["serve"]["kv_transfer_config"] = {"kv_connector": connector}
    del made["router"]
    made["workload"]["synthetic"]["prompt"] = {"kind": "fixed", "value": 3000}
    made["pools"] = {name: {"role": role, "replicas": 2, "max_replicas": 2}
                     for name, role in (("p", "prefill"), ("d", "decode"))}
    return made


@pytest.mark.parametrize(("pool", "limit"), [("p", 1), ("d", 1), ("d", 0), (None, 0)])
def test_autoscalers_see_a_split_request_once(pool, limit):
    result, seen = counted(split(pool, "NixlConnector", termination_grace_period="0 s", migration_limit=limit))
    got = tokens(result)
    assert (seen.ended, seen.output_tokens) == (len(got), sum(got.values()))
    assert seen.gaps == result.summary["completed"] * (OUTPUT - 1)
    if result.summary["completed"] == COUNT:
        assert seen.ttft / COUNT == pytest.approx(result.summary["mean_ttft_ms"] / 1e3)


@pytest.mark.parametrize(("surge", "missing", "places", "most", "least"), [(1, 0, 3, 3, 2), (0, 1, 2, 2, 1),
                                                                            ("25%", "25%", 3, 3, 2), (1, 0, 2, 2, 2)])
def test_an_update_replaces_replicas_within_its_bounds(surge, missing, places, most, least):
    update = {"at": "1 s", "max_surge": surge, "max_unavailable": missing}
    result = served(autoscaler=None, places=places, count=30, rate=4.0, rolling_update=update)
    assert tokens(result) == dict.fromkeys(range(30), OUTPUT)
    changes = sorted((moment, engine, state) for engine, built in enumerate(result.log.engines)
                     for moment, state in built.life)
    now = {}
    for index, (moment, engine, state) in enumerate(changes):
        now[engine] = state
        if index + 1 == len(changes) or changes[index + 1][0] > moment:
            assert sum(each in ("ready", "starting") for each in now.values()) <= most
            assert sum(each == "ready" for each in now.values()) >= least
    began = [moment for moment, _, state in changes if state == "starting"]
    assert len(began) == (2 if places > 2 or missing else 0) and all(moment >= 1.0 for moment in began)


@pytest.mark.parametrize(("change", "says"), [
    ({"lifecycle": {"migration_limit": 1}}, "is of requests that are cut off"),
    ({"lifecycle": {"rolling_update": {"at": "1 s", "max_surge": "some"}}}, "a percentage such as '25%'"),
    ({"autoscaler": None, "pools": {"a": {"role": "both", "lifecycle": {"pre_stop": "1 s"}}}}, "nothing lets any go"),
    ({"lifecycle": {"rolling_update": {"at": "1 s"}}, "pools": {}, "autoscaler": None}, "the scenario has none")])
def test_what_cannot_end_is_refused(change, says):
    made = {**table(), **change}
    with pytest.raises(ConfigError, match=says):
        simulate(Scenario.of({key: value for key, value in made.items() if value is not None}))


@pytest.mark.parametrize("pool", ["p", "d"])
@pytest.mark.parametrize("connector", ["NixlConnector", "MooncakeConnector"])
@pytest.mark.parametrize("limit", [0, 1])
def test_split_requests_migrate_whole_and_are_sent_again_whole(pool, connector, limit):
    made = split(pool, connector, termination_grace_period="0 s", migration_limit=limit)
    made["workload"]["retries"] = {"max_retries": 1}
    result = simulate(Scenario.of(made))
    again = {one.request_id for one in result.log.of(Refused)}
    assert all(got == OUTPUT or (request in again and got > OUTPUT) for request, got in tokens(result).items())
    assert result.summary["completed"] == COUNT and not (limit and again)
    assert pool == "p" or any(result.history.requests.migrated)
    assert result.summary["unattributed_energy_joules"] >= -1e-6

"""What routers know of tiers below the GPU by KV events that come late, or are lost."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.llm_d.parts.producers import PrecisePrefixCacheProducer
from ksim.cluster.routers.dynamo_kv import DynamoKv
from ksim.cluster.signals import View
from ksim.cluster.signals.kv_index import KvIndex, SharedTier, TierIndexes
from ksim.engine.observer import RESOLUTION, Observer
from tests.kv.offload.runs import BLOCK, MULTI_TIER, SESSIONS, requests, scenario
from tests.kv.transfer.fleets import run
from tests.laws.happenings import facts
from tests.laws.looking import NOTED
from tests.laws.tiny import TINY, uniform
from tests.properties import examples

#: Connectors, and the names of the tiers that engines with them share.
KINDS: dict[str, dict[str, Any]] = {"OffloadingConnector": {}, "tiers": MULTI_TIER, "LMCacheConnectorV1": {},
                                    "MooncakeStoreConnector": {}}
SHARED = {"tiers": {"disk"}, "MooncakeStoreConnector": {"cpu"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def table(model: str | Path, kind: str, blocks: int, delay: float, **more: Any) -> dict[str, Any]:
    """Two engines with little room on their GPUs, and so many *blocks* of room in tiers of this *kind*."""
    load = requests(more.pop("count", 10), 300, uniform(40, 150), uniform(1, 25), sessions=SESSIONS,
                    prefixes={"groups": 2, "tokens": 64})
    made = scenario(str(model), blocks, load, more.pop("seed", 1), {"all": {"role": "both", "replicas": 2}},
                    KINDS[kind], **more.pop("serve", {}))
    config = made["serve"]["kv_transfer_config"]
    if kind == "LMCacheConnectorV1":
        config |= {"kv_connector": kind, "kv_connector_extra_config": {
            "lmcache.chunk_size": 32, "lmcache.max_local_cpu_size": blocks * BLOCK / 2**30}}
    elif kind == "MooncakeStoreConnector":
        config |= {"kv_connector": kind, "kv_connector_extra_config": {"global_segment_size": blocks * BLOCK}}
    return {**made, "router": "tests.laws.looking:LookingBelow", "signals": {"delay": f"{delay} s"}, **more}


cases = st.fixed_dictionaries({
    "kind": st.sampled_from(sorted(KINDS)), "blocks": st.sampled_from([12, 60]), "seed": st.integers(0, 99),
    "delay": st.sampled_from([0.0004, 0.004, 0.03]),
    "serve": st.fixed_dictionaries({"async_scheduling": st.booleans(), "max_num_seqs": st.sampled_from([2, 8])})})


@given(case=cases, loss=st.sampled_from([0, 0, 0.3]))
@examples(24)
def test_what_is_known_of_tiers_does_not_depend_on_how_engines_are_played(model, case, loss):
    made = table(model, **case)
    made["signals"]["loss"] = loss
    seen, logs = [], []
    for skips in (True, False):
        NOTED.clear()
        logs.append(facts(run(made, skips).log))
        seen.append([*NOTED])
    assert seen[0] == seen[1]
    assert sorted(map(repr, logs[0])) == sorted(map(repr, logs[1]))


@pytest.mark.parametrize("signals", [{"scrape_interval": "7 ms", "delay": "2 ms", "loss": 0.2}, {"scrape_interval": 0}])
def test_pools_that_split_requests_see_the_same_however_they_are_played(model, signals):
    """Each side has a router that looks at books, metrics and late KV events."""
    load = requests(16, 400, uniform(40, 150), uniform(1, 25), prefixes={"groups": 2, "tokens": 64})
    pools = {side: {"role": side, "replicas": 2} for side in ("prefill", "decode")}
    looking = "tests.laws.looking:" + ("Looking" if "delay" in signals else "Unsure")
    made = {**scenario(model, 60, load, pools=pools), "signals": signals,
            "pair_router": {"name": "each_side", "prefill": looking, "decode": looking}}
    seen, logs = [], []
    for skips in (True, False):
        NOTED.clear()
        logs.append(sorted(map(repr, facts(run(made, skips).log))))
        seen.append([*NOTED])
    assert seen[0] == seen[1] and len(seen[0]) > 32
    assert logs[0] == logs[1]


@given(case=cases)
@examples(36)
def test_an_index_has_what_a_tier_had_a_delay_ago(model, case):
    """A chunk is in it exactly while it was in the tier, or on its way there."""
    compare_indexes(model, case)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_hears_of_what_a_tier_has(model, kind):
    """Requests that all come before the first chunk is stored and told of see empty tiers; these come later, too."""
    assert compare_indexes(model, {"kind": kind, "blocks": 60, "seed": 1, "delay": 0.0004})


def compare_indexes(model: str, case: dict[str, Any]) -> int:
    """Compare what routers know of tiers with what these had a delay ago; return how often that was anything."""
    contents: dict[Any, list[tuple[float, set[int]]]] = {}
    stores: dict[Any, Any] = {}
    compared = 0
    of, flush, send = TierIndexes.of, Observer.flush, SharedTier._send

    def keep(indexes, engine, observer, own):
        known = of(indexes, engine, observer, own)
        for name, store in engine.scheduler.connector.contents.items():
            stores[id(known[name])] = store
            if name not in SHARED.get(case["kind"], ()):
                stores[observer.number] = store, id(known[name])
        return known

    def note(observer, now):
        flush(observer, now)
        if observer.number in stores:
            store, known = stores[observer.number]
            contents.setdefault(known, []).append((now, held(store)))

    def note_shared(tier, batch):
        send(tier, batch)
        contents.setdefault(id(tier.keys), []).append((tier.clock.now, held(stores[id(tier.keys)])))

    def compare(known: set[int], now: float) -> None:
        nonlocal compared
        moment = now - case["delay"] + RESOLUTION
        before = [keys for time, keys in sorted(contents.get(id(known), []), key=lambda pair: pair[0])
                  if time <= moment]
        assert known == (before[-1] if before else set())
        compared += bool(known)

    def looks(look, sets):
        def compare_all(index, now):
            look(index, now)
            for known in sets(index):
                compare(known, now)
        return compare_all

    own = set() if case["kind"] == "MooncakeStoreConnector" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TierIndexes, "of", keep)
        patch.setattr(Observer, "flush", note)
        patch.setattr(SharedTier, "_send", note_shared)
        patch.setattr(KvIndex, "look", looks(KvIndex.look, lambda index: index.below if own is None else ()))
        patch.setattr(SharedTier, "look", looks(SharedTier.look, lambda tier: [tier.keys]))
        run(table(model, **case))
    return compared


def held(store: Any) -> set[int]:
    """The keys of what a store has, and of what is on its way there as its connector sees it."""
    for name in ("_users", "_pins", "_loads", "_keys"):
        if hasattr(store, name):
            return {*getattr(store, name)}
    raise AssertionError("a store has keys")


def test_routers_credit_what_they_hear_late_of_tiers(model, monkeypatch):
    """Dynamo's credit for a block is 1.0, 0.75 and 0.25 by tier; llm-d-kv-cache's 1.0, 0.8 and 0.3."""
    seen: list[dict[str, int]] = []
    credits: dict[str, list[float]] = {"dynamo_kv": [], "llm_d": []}
    tier_hits, lower, weighted = View.tier_hits, DynamoKv._lower, PrecisePrefixCacheProducer._weighted

    def note(view, request):
        seen.append(dict(tier_hits(view, request)))
        return seen[-1]

    def note_lower(router, tiers):
        credit = lower(router, tiers)
        assert credit == 0.75 * tiers.get("cpu", 0) / 16 + 0.25 * tiers.get("disk", 0) / 16
        credits["dynamo_kv"].append(credit)
        return credit

    def note_weighted(producer, cycle, engine, size, total):
        weight, below = weighted(producer, cycle, engine, size, total), seen[-1]
        on_gpu = engine.prefix_hit(cycle.request) / 16
        assert weight == pytest.approx(on_gpu + 0.8 * below.get("cpu", 0) / 16 + 0.3 * below.get("disk", 0) / 16)
        credits["llm_d"].append(weight - on_gpu)
        return weight

    monkeypatch.setattr(View, "tier_hits", note)
    monkeypatch.setattr(DynamoKv, "_lower", note_lower)
    monkeypatch.setattr(PrecisePrefixCacheProducer, "_weighted", note_weighted)
    for router in ("dynamo_kv", {"name": "llm_d", "scorers": {"precise-prefix-cache-scorer": 1}}):
        run({**table(model, "tiers", 60, 0.003, count=30), "router": router})
    assert {name for tiers in seen for name in tiers} == {"cpu", "disk"}
    assert all(any(credit > 0 for credit in given) for given in credits.values())


def test_events_that_are_lost_are_never_heard(model):
    """A block whose event is lost stays unknown; nobody knows of more than there was."""
    known = []
    for loss in (0, 0.9):
        NOTED.clear()
        made = table(model, "MooncakeStoreConnector", 60, 0.001, count=30)
        made["signals"]["loss"] = loss
        run(made)
        known.append(sum(sum(below.values()) for _, _, seen in NOTED for *_, below in seen))
    assert known[1] < known[0]

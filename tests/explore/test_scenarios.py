"""Random scenarios over all keys: each is refused with a message, or runs as the laws of runs have it.

Not part of the suite: `make explore` tries new ones each time.
"""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, note

from ksim import KsimError, Scenario, simulate
from ksim.foundation import catalog
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import try_to_build
from tests.explore.anything import changed
from tests.explore.features import ask, features_of, table_of, with_changes, with_files
from tests.explore.fleets import fleets, ordinary
from tests.explore.laws import LAWS, run_of
from tests.explore.strategies import scenarios
from tests.properties import examples, share

pytestmark = [pytest.mark.explore, pytest.mark.filterwarnings("error")]
#: Parts of a search, each a test, which processes share.
PARTS = 10
#: A GPU that is slow up to a moment of the run.
SLOW_AT_FIRST = {
    "gpu": "a100-40g", "model": "llama-3.2-1b", "oracle": "roofline", "detail": "rank",
    "ranks": {"slow": [{"gpu": 0, "speed": 0.3, "end": "5 ms"}]},
    "workload": {"synthetic": {
        "count": 3, "arrivals": {"process": "constant", "rate": 10.0}, "prompt": {"kind": "fixed", "value": 64},
        "output": {"kind": "fixed", "value": 16}}}}
#: Two prompts that end at the same moment on two engines.
PROMPTS_TIE = {
    "gpu": "a100-40g", "model": "llama-3.2-1b", "serve": {"max_model_len": 40},
    "pools": {"prefill0": {"role": "prefill"}, "prefill1": {"role": "prefill"}, "decode2": {"role": "decode"}},
    "workload": {"max_concurrency": 8, "synthetic": {
        "count": 2, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": 1},
        "output": {"kind": "fixed", "value": 1}}}}
#: So many keys, one after the other, get other values; a scenario stays as it was where that is refused.
CHANGES = 10


def doubled(quantity: str) -> str:
    number, unit = quantity.split()
    return f"{2 * float(number)} {unit}"


H200 = catalog.load("gpus", "h200")
#: An H200 with all rates but the clock twice as high.
FAST = {"name": "h200", **{key: doubled(H200[key]) for key in ("bandwidth", "nvlink", "pcie")},
        "flops": {key: doubled(rate) for key, rate in H200["flops"].items()}}


@pytest.fixture(scope="module")
def first_seed(pytestconfig: pytest.Config) -> int:
    """What `make explore SEED=...` says."""
    return int(pytestconfig.getoption("hypothesis_seed") or 0)


@pytest.mark.parametrize("part", range(PARTS))
def test_features_in_pairs_keep_the_laws(part, first_seed, tmp_path):
    for seed in range(first_seed + part, first_seed + share(1500), PARTS):
        names = accepted(features_of(seed), seed, tmp_path)
        if fault := breach(with_files(table_of(names, seed), tmp_path)):
            names = smallest(names, seed, tmp_path)
            text = tomli_w.dumps(table_of(names, seed))
            raise AssertionError(f"seed {seed}, {' + '.join(names)}\n{text}") from fault


@pytest.mark.parametrize("part", range(PARTS))
def test_other_values_of_any_keys_are_refused_or_keep_the_laws(part, first_seed, tmp_path):
    for seed in range(first_seed + part, first_seed + share(400), PARTS):
        chance, table = Random(seed), table_of(accepted(features_of(seed)[:2], seed, tmp_path), seed)
        for _ in range(CHANGES):
            other = changed(table, chance)
            if is_accepted(with_files(other, tmp_path)):
                table = other
        if fault := breach(with_files(table, tmp_path)):
            raise AssertionError(f"seed {seed}\n{tomli_w.dumps(table)}") from fault


def test_a_gpu_twice_as_fast_makes_no_lone_request_wait_longer(first_seed, tmp_path):
    for seed in range(first_seed, first_seed + share(100)):
        table = with_changes(table_of(accepted(features_of(seed), seed, tmp_path), seed), ask(count=1))
        table = with_files(table, tmp_path)
        if (table["gpu"], table["oracle"]) == ("h200", "roofline") and is_accepted(table):
            usual, fast = (simulate(Scenario.of(other)).requests for other in (table, {**table, "gpu": FAST}))
            for column in ("ttft_s", "e2e_s"):
                longer = np.array(fast[column], float) - np.array(usual[column], float)
                assert not np.any(longer > 1e-9), f"seed {seed}: {column}\n{tomli_w.dumps(table)}"


@given(table=scenarios())
@examples(100, suppress_health_check=list(HealthCheck))
def test_a_scenario_is_refused_or_its_run_keeps_the_laws(table):
    refused_or_lawful(table)


@given(table=fleets())
@example(table=SLOW_AT_FIRST)
@example(table=PROMPTS_TIE)
@examples(150, suppress_health_check=list(HealthCheck))
def test_a_fleet_is_refused_or_its_run_keeps_the_laws(table):
    refused_or_lawful(table)


@given(table=scenarios().map(ordinary))
@examples(100, suppress_health_check=list(HealthCheck))
def test_one_pool_of_role_both_is_the_scenario(table):
    note(tomli_w.dumps(table))
    try:
        alone = simulate(Scenario.of(table))
    except KsimError:
        return
    pooled = simulate(Scenario.of(table | {"pools": {"all": {"role": "both"}}}))
    columns = alone.requests.column_names
    assert pooled.requests.select(columns).equals(alone.requests)
    assert {key: pooled.summary[key] for key in alone.summary} == alone.summary


def refused_or_lawful(table: dict[str, Any]) -> None:
    note(tomli_w.dumps(table))
    if fault := breach(table):
        raise fault


def breach(table: dict[str, Any]) -> Exception | None:
    """How the run of *table* breaks a law, if it does; one that is refused must be so in one line."""
    try:
        run = run_of(Fleet.of(Scenario.of(table)))
    except KsimError as error:
        return None if is_told(error) else error
    except Exception as fault:
        return fault
    try:
        for law in LAWS:
            law(run)
    except Exception as fault:  # an assertion, any fault of ksim, or a refusal of what was just run
        return fault
    return None


def is_told(error: KsimError) -> bool:
    return bool(str(error).strip()) and "\n" not in str(error)


def is_accepted(table: dict[str, Any]) -> bool:
    """Whether *table* is not refused in one line; a run of one that fails otherwise fails, too."""
    try:
        try_to_build(Scenario.of(table))
    except KsimError as error:
        return not is_told(error)
    except Exception:
        return True
    return True


def accepted(names: list[str], seed: int, folder: Path) -> list[str]:
    """Those of the features *names* that may be together, the first ones first."""
    if is_accepted(with_files(table_of(names, seed), folder)):
        return names
    kept: list[str] = []
    for name in names:
        if is_accepted(with_files(table_of([*kept, name], seed), folder)):
            kept.append(name)
    return kept


def smallest(names: list[str], seed: int, folder: Path) -> list[str]:
    """Those of the features *names* without which no law is broken."""
    for name in names:
        fewer = [other for other in names if other != name]
        if breach(with_files(table_of(fewer, seed), folder)):
            names = fewer
    return names

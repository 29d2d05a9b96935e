"""Prices that runs share change no bit of any run, whoever wrote them and whatever became of them."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ksim.cost.remembering.book import rows_of
from ksim.foundation.errors import DataError
from ksim.foundation.folders import OFF, VARIABLE, cache
from ksim.oracles.measured import Measured
from ksim.simulation import cached
from ksim.simulation.grid import Axis, combinations, outcomes
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.simulation.streaming import stream
from tests.simulation.test_parallel_replicas import content, uniform

ROOT = Path(__file__).parents[2]


def scenario(serve=None, **more) -> Scenario:
    synthetic = {"count": 12, "arrivals": {"process": "poisson", "rate": 40.0}, "prompt": uniform(1, 700),
                 "output": uniform(1, 9)}
    return Scenario.of({"model": "llama-3.2-1b", "gpu": "h200", "workload": {"synthetic": synthetic},
                        "serve": {"max_model_len": 1024, **(serve or {})}, **more})


#: Engines that ask about kernels in other ways: other libraries, mixtures, fewer SMs beside sums, another GPU.
SCENARIOS = {
    "dense": scenario(),
    "another seed": scenario(seed=1),
    "mixture": scenario(model="qwen3-30b-a3b"),
    "overlap": scenario(serve={"tensor_parallel_size": 2, "overlap_stages": 2, "overlap_sms": 8}),
    "another GPU": scenario(gpu="a100-80g"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture(scope="module")
def plain():
    return {name: content(simulate(one, cached=False)) for name, one in SCENARIOS.items()}


@pytest.fixture
def asked(monkeypatch):
    """The kernels that the oracle is asked about in place of the file."""
    found, plainly, together = [], Measured.estimates, Measured.several

    def watched(self, kernels, gpu):
        found.extend(kernels)
        return plainly(self, kernels, gpu)

    def watched_together(self, kernels, gpu):
        found.extend(kernels.each())
        return together(self, kernels, gpu)

    monkeypatch.setattr(Measured, "estimates", watched)
    monkeypatch.setattr(Measured, "several", watched_together)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_cold_warm_and_filled_by_others_runs_are_the_same(folder, plain, name):
    assert content(simulate(SCENARIOS[name])) == plain[name]
    assert content(simulate(SCENARIOS[name])) == plain[name]
    for other in SCENARIOS.values():
        simulate(other)
    assert content(simulate(SCENARIOS[name])) == plain[name]
    assert len([*folder.iterdir()]) == 1


def test_a_second_run_asks_about_nothing_but_attention(folder, asked):
    simulate(scenario())
    cold = len(asked)
    asked.clear()
    simulate(scenario())
    assert cold > 100
    assert {kernel.family for kernel in asked} <= {"attention"}


def test_a_file_broken_at_random_changes_nothing_and_is_mended(folder, plain, asked):
    simulate(SCENARIOS["dense"])
    (path,) = folder.iterdir()
    whole, draw = path.read_bytes(), random.Random(3)
    for _ in range(4):
        broken = bytearray(whole)
        for _ in range(draw.choice([1, 30, 3000])):
            broken[draw.randrange(len(broken))] ^= draw.randrange(1, 256)
        path.write_bytes(broken[:draw.choice([len(broken), draw.randrange(len(broken))])])
        assert content(simulate(SCENARIOS["dense"])) == plain["dense"]
    path.write_bytes(b"")
    simulate(SCENARIOS["dense"])
    asked.clear()
    assert content(simulate(SCENARIOS["dense"])) == plain["dense"]
    assert {kernel.family for kernel in asked} <= {"attention"}


def test_processes_that_write_at_once_lose_and_spoil_nothing(folder, plain):
    run = ("import sys; from tests.simulation.test_cached import SCENARIOS, content, simulate\n"
           "for name in sys.argv[1:]: result = simulate(SCENARIOS[name]); print(content(result), result.remarks)")
    names = ["dense", "another seed"]
    several = [subprocess.Popen([sys.executable, "-c", run, *names[first:], *names[:first]], stdout=subprocess.PIPE,
                                text=True, cwd=ROOT) for first in range(2)]
    printed = [process.communicate()[0].splitlines() for process in several]
    for first, lines in enumerate(printed):
        assert lines == [f"{plain[name]} ()" for name in (*names[first:], *names[:first])]
    (path,) = folder.iterdir()
    rows = rows_of(path)
    for name in names:
        assert content(simulate(SCENARIOS[name])) == plain[name]
    assert rows_of(path) == rows


def test_replicas_and_grids_in_processes_of_their_own_share_them(folder):
    replicas = scenario(serve={"data_parallel_size": 2})
    apart = simulate(replicas, jobs=2)
    assert len([*folder.iterdir()]) == 1
    assert not apart.remarks
    assert content(apart) == content(simulate(replicas, cached=False))
    chosen = combinations([Axis.parse("serve.max_num_seqs=2,8")])
    together = [each.summary for each in outcomes(scenario(), chosen, jobs=2)]
    assert together == [simulate(scenario().with_values(each), cached=False).summary for each in chosen]


def test_streamed_runs_share_them(folder, tmp_path):
    plainly = stream(scenario(), tmp_path / "plain", cached=False).summary
    assert not folder.exists()
    assert [stream(scenario(), tmp_path / name).summary for name in ("cold", "warm")] == [plainly] * 2
    assert folder.exists()


def test_where_nothing_can_be_kept_a_remark_says_so_and_nothing_else_changes(tmp_path, monkeypatch, plain):
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "folder"))
    result = simulate(SCENARIOS["dense"])
    assert content(result) == plain["dense"]
    (remark,) = result.remarks
    assert remark.startswith(f"prices are not kept in {tmp_path}/file/folder/")


def test_a_run_that_fails_keeps_what_it_has_learned(folder, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ksim.cluster.cluster.Cluster.close", fails)
    with pytest.raises(KeyboardInterrupt):
        simulate(scenario())
    (path,) = folder.iterdir()
    assert rows_of(path) > 50


def test_what_is_kept_is_shown_and_cleared(folder):
    assert cached.prices(cached.folder()) == []
    simulate(scenario())
    (found,) = cached.prices(cached.folder())
    assert found.rows > 50 and found.size == found.path.stat().st_size
    assert cached.clear(folder) == found.size
    assert cached.prices(folder) == []


def test_what_cannot_be_removed_is_said(folder):
    (folder / "a.prices").mkdir(parents=True)
    with pytest.raises(DataError, match="kept: "):
        cached.clear(folder)
    (found,) = cached.prices(folder)
    assert found.rows is None


@pytest.mark.parametrize("environment, found", [
    ({VARIABLE: OFF}, None), ({VARIABLE: "/own"}, "/own"), ({VARIABLE: "~/own"}, "{home}/own"),
    ({VARIABLE: "", "XDG_CACHE_HOME": "/shared"}, "/shared/ksim"),
    ({"XDG_CACHE_HOME": "relative"}, "{home}/.cache/ksim"), ({}, "{home}/.cache/ksim")])
def test_the_folder_is_where_users_look_for_it(environment, found):
    home = str(Path.home())
    assert cache(environment) == (None if found is None else Path(found.format(home=home)))


def test_tests_keep_nothing_of_the_users():
    assert os.environ[VARIABLE] == OFF

"""Studies on a local Ray of two CPUs, which all tests share: the same rows, to the byte, and the same errors."""

import os
import signal
from importlib.util import find_spec

import pytest

from ksim.foundation.errors import ConfigError, KsimError, MissingExtra, installing
from ksim.scenario.scenario import Scenario
from ksim.study.grid import Range, Sample
from ksim.study.sweep import SweepPlan
from ksim.study.workers import Where, in_order, own_modules, ray_workers
from tests.cli.command import SCENARIO, ksim_here

#: An oracle that is found in the user's working directory only.
MINE = """
class Mine:
    def seconds(self, kernel, gpu):
        return 1e-5
"""


@pytest.fixture(scope="module")
def ray():
    """A Ray of this process, which those that are asked for use."""
    if find_spec("ray") is None:
        pytest.skip(f"needs ray: {installing('ray')}")
    before = signal.getsignal(signal.SIGTERM)
    with ray_workers(2) as pool:
        assert signal.getsignal(signal.SIGTERM) is before  # Ray's own would end us without cleaning up
        yield pool


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return tmp_path


def square(number):
    return number**2


def refuse(number):
    raise ConfigError("here", f"{number} is odd") if number % 2 else UserError(str(number))


class UserError(Exception):
    """Of a plug-in."""


def end(number):
    os._exit(3)


def failures(done):
    """Standard error without the lines of progress, which a slow machine has."""
    return [line for line in done.stderr.splitlines() if "about" not in line]


def test_a_sweep_on_ray_has_the_same_bytes_and_finds_plug_ins_in_the_working_directory(ray, folder):
    words = ("sweep", "s.toml", "--over", "oracle=roofline,mine:Mine", "--over", "serve.max_num_seqs=0,2,16",
             "--repeat", 2)
    one = ksim_here(*words, "--jobs", 1, "-o", "one", folder=folder)
    two = ksim_here(*words, "--on", "ray", "-o", "two", folder=folder)
    assert (one.status, two.status, failures(two)) == (0, 0, failures(one))
    assert two.stdout == one.stdout.replace("one", "two")
    assert (folder / "one" / "runs.parquet").read_bytes() == (folder / "two" / "runs.parquet").read_bytes()


@pytest.mark.explore  # all studies ask their workers alike: tests/study/orders.py
@pytest.mark.parametrize(("needs", "words"), [
    ("optuna", ("tune", "s.toml", "--minimize", "median_e2el_ms", "--space", "serve.max_num_seqs=1:16", "--trials", 6)),
    ("ray", ("capacity", "s.toml", "--slo", "ttft:p90:1s", "--requests", 60, "--replications", 3, "--no-model-error"))])
def test_other_studies_on_ray_have_the_same_bytes_too(ray, folder, needs, words):
    pytest.importorskip(needs)
    for name, where in (("one", ("--jobs", 1)), ("two", ("--on", "ray"))):
        assert ksim_here(*words, *where, "-o", name, folder=folder).status == 0
    assert (folder / "one" / "runs.parquet").read_bytes() == (folder / "two" / "runs.parquet").read_bytes()


def test_items_come_by_their_places_and_few_are_in_flight(ray):
    taken = []

    class Items(list):
        def __iter__(self):
            return iter(taken.append(item) or item for item in range(50))

    results = ray.run(square, Items())
    place, result = next(results)
    assert len(taken) == 4 and result == place**2
    rest = in_order(results, 50)
    assert [*rest[:place], result, *rest[place + 1:]] == [number**2 for number in range(50)]


def test_errors_are_raised_as_they_were(ray):
    with pytest.raises(ConfigError, match="here: 1 is odd"):
        list(ray.run(refuse, [1]))
    with pytest.raises(UserError, match="2"):
        list(ray.run(refuse, [2]))


def test_an_interrupt_keeps_what_has_ended(ray, tmp_path):
    (tmp_path / "s.toml").write_text(SCENARIO, encoding="utf-8")
    plan = SweepPlan(Scenario.read(tmp_path / "s.toml"), (Range("serve.max_num_seqs", 1, 99, whole=True),),
                     Sample("latin", 30))

    def interrupt():
        if len(study.rows) == 3:
            raise KeyboardInterrupt

    with plan.kept(tmp_path / "out", "") as study, pytest.raises(KeyboardInterrupt):
        plan.carry_out(study, Where(on="ray"), interrupt)
    with plan.kept(tmp_path / "out", "", resume=True) as study:
        assert len(study.rows) == 3


def test_a_process_that_is_killed_is_an_error(ray):
    with pytest.raises(KsimError, match="Ray lost a run"):
        list(ray.run(end, [1]))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_an_error_at_once(address, monkeypatch):
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: False)
    refused = pytest.raises(KsimError, match=f"Ray of the cluster at {address} cannot be used: .*Connection refused")
    with refused, Where(2, "ray", address).workers():
        pass


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("ksim.study.workers.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"--on ray needs ray: pip install 'ksim-llm\[ray\]'"):
        Where(2, "ray")


def test_nodes_of_a_cluster_get_the_modules_of_the_working_directory(folder):
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").touch()
    (folder / "data").mkdir()
    (folder / ".hidden.py").touch()
    assert own_modules(folder) == [str(folder / "mine.py"), str(folder / "pack")]

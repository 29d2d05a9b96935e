"""What CPUs add to requests and steps."""

import pytest
from attrs import fields

from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.scenario.hardware import host_of
from ksim.specs.host import Host, Pace
from tests.specs.hosts import PARTS, host


def table() -> dict:
    return {"name": "n", "source": "s", **{name: {field.name: "50 us" for field in fields(part)}
                                           for name, part in PARTS.items()}}


def test_costs_are_written_with_their_units():
    assert structure(Host, table()).worker.prepare == pytest.approx(50e-6)


def test_a_cost_that_is_not_there_is_named():
    lacking = table()
    del lacking["worker"]["piece"]
    with pytest.raises(ConfigError, match=r"worker\.piece: is missing"):
        structure(Host, lacking)


def test_a_host_that_is_like_another_says_only_where_it_differs(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nlike = "default"\nsource = "s"\n[worker]\nreplay = "9 ms"\n')
    mine, default = host_of(str(tmp_path / "mine.toml")), host_of("default")
    assert (mine.name, mine.worker.replay, mine.worker.piece) == ("mine", 9e-3, default.worker.piece)
    assert (mine.client, mine.core, mine.inputs) == (default.client, default.core, default.inputs)


def test_what_a_host_is_like_may_be_like_another(tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(f'name = "first"\nlike = "{second}"\nsource = "s"\n[worker]\nreplay = "9 ms"\n')
    second.write_text('name = "second"\nlike = "api-server"\nsource = "s"\n[worker]\npiece = "8 ms"\nreplay = "7 ms"\n')
    mine = host_of(str(first))
    assert (mine.worker.replay, mine.worker.piece, mine.client) == (9e-3, 8e-3, host_of("api-server").client)
    second.write_text(f'name = "second"\nlike = "{first}"\nsource = "s"\n')
    with pytest.raises(ConfigError, match=r"second.toml: like: leads back to '.*first.toml'"):
        host_of(str(first))


@pytest.mark.parametrize("name", catalog.entries("hosts"))
def test_hosts_that_ship_launch_single_kernels_slower_than_graphs(name):
    shipped = host_of(name)
    kernels = 320
    assert shipped.worker.replay < kernels * min(shipped.worker.eager, shipped.worker.compiled)
    assert shipped.source


def test_host_costs_are_once_a_step_and_for_each_sequence():
    ours = host(core={"schedule": 1, "schedule_sequence": 2, "schedule_block": 3, "send": 100, "update": 4,
                      "update_sequence": 5}, worker={"prepare": 6, "prepare_sequence": 7})
    assert ours.core.making(sequences=10, blocks=20, workers=1) == 1 + 20 + 60
    assert ours.core.making(sequences=10, blocks=20, workers=2) == 1 + 20 + 60 + 100
    assert ours.core.taking(samples=10) == 54
    assert ours.worker.preparing(sequences=10) == 76


def test_a_pace_holds_from_its_moment_on_and_the_first_before_it():
    pace = Pace((1.0, 1.8, 1.2), (2.0, 3.0, 5.0))
    assert [pace.at(moment) for moment in (0.0, 2.0, 2.9, 3.0, 4.0, 5.0, 99.0)] == [1.0, 1.0, 1.0, 1.8, 1.8, 1.2, 1.2]
    assert Pace().at(7.0) == 1.0


def test_a_host_may_say_that_it_is_slower_than_another(tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nlike = "default"\nsource = "s"\n[pace]\nfactors = [1.8]\n')
    mine = host_of(str(tmp_path / "mine.toml"))
    assert mine.pace == Pace((1.8,)) and mine.worker == host_of("default").worker


@pytest.mark.parametrize("pace", ["factors = []", "factors = [0.0]", "factors = [1.0, 2.0]",
                                  "factors = [1.0, 2.0]\nsince = [3.0, 1.0]"])
def test_a_pace_without_a_factor_or_in_no_order_is_refused(pace, tmp_path):
    (tmp_path / "mine.toml").write_text(f'name = "mine"\nlike = "default"\nsource = "s"\n[pace]\n{pace}\n')
    with pytest.raises(ConfigError, match="pace"):
        host_of(str(tmp_path / "mine.toml"))

"""Messages between GPUs: overhead-bound when small, and never free."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ksim.cli import app
from ksim.foundation.errors import ConfigError, DoesNotFit, UnknownName
from ksim.scenario.messages import messages
from tests.properties import examples


def priced(kind="all_reduce", ranks=8, sizes=(1e6,), gpu="a100-80g", nodes=None):
    return list(messages(gpu, None, nodes, [kind], [ranks], sizes))


@pytest.mark.parametrize("gpu", ["a100-80g", "h200"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_small_messages_cost_their_overhead_and_large_ones_their_bytes(gpu, ranks):
    """On double logarithmic axes, joules are level to begin with, and end in a line of slope one."""
    tiny, small, large, huge = priced(ranks=ranks, sizes=(1e3, 2e3, 1e9, 2e9), gpu=gpu)
    assert math.log2(small.joules / tiny.joules) < 0.05
    assert math.log2(huge.joules / large.joules) == pytest.approx(1, abs=0.02)
    assert tiny.joules_per_bit > 300 * huge.joules_per_bit


@examples(30)
@given(st.floats(1e3, 1e9), st.sampled_from(["all_reduce", "all_gather", "all_to_all"]), st.sampled_from([2, 4, 8]))
def test_larger_messages_cost_more_energy_and_less_per_bit(size, kind, ranks):
    """But for the steps at which a library goes over to another protocol, which differ by less than half."""
    one, two = priced(kind, ranks, (size, 2 * size))
    assert two.joules > 0.99 * one.joules
    assert two.joules_per_bit < 1.5 * one.joules_per_bit


def test_idle_power_is_part_of_a_message_and_a_gpu_among_more_takes_more():
    few, many = (priced(ranks=ranks, sizes=(1e8,))[0] for ranks in (2, 8))
    assert 0 < few.idle_joules < few.joules
    assert many.joules / 8 > few.joules / 2


def test_bytes_through_a_nic_cost_more_than_those_that_stay_in_the_node():
    inside, = priced(ranks=8, sizes=(1e9,))
    across, = priced(ranks=16, sizes=(1e9,), nodes=2)
    dynamic = [(each.joules - each.idle_joules) / each.ranks for each in (inside, across)]
    assert dynamic[1] > 1.05 * dynamic[0]


def test_bus_bandwidth_is_that_of_nccl_tests():
    message, = priced(sizes=(1e9,))
    assert message.bus_bandwidth == pytest.approx(2 * 7 / 8 * 1e9 / message.seconds)
    assert message.bus_bandwidth < 300e9


@pytest.mark.parametrize("changes, error, problem", [
    ({"kind": "all_redux"}, UnknownName, "did you mean 'all_reduce'"),
    ({"ranks": 1}, ConfigError, "name 2 or more"),
    ({"ranks": 16}, DoesNotFit, "set nodes to 2"),
    ({"sizes": (0.0,)}, ConfigError, "at least one byte"),
])
def test_impossible_messages_are_refused(changes, error, problem):
    with pytest.raises(error, match=problem):
        priced(**changes)


def test_ksim_collectives_prints_and_writes_a_row_per_message(tmp_path):
    out = CliRunner().invoke(app, ["collectives", "--gpu", "h200", "--ranks", "2,8", "--sizes", "1 KiB, 1 MiB",
                                   "--kinds", "all_reduce,all_gather", "--json", str(tmp_path / "out.json")])
    assert out.exit_code == 0 and out.stdout.count("all_gather") == 4
    rows = json.loads((tmp_path / "out.json").read_text())["messages"]
    assert [row["bytes"] for row in rows[:2]] == [1024, 2**20] and len(rows) == 8

"""How ranks share indices."""

import pytest

from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError

LLAMA = Sizes({"K": 8, "r": 4, "i": 6, "h": 128, "F": 14336, "V": 128256})


def test_volume():
    assert LLAMA.volume("Krh") == 4096
    assert LLAMA.volume("") == 1


@pytest.mark.parametrize("ways, kv_heads, group", [(1, 8, 4), (2, 4, 4), (8, 1, 4), (16, 1, 2), (32, 1, 1)])
def test_heads_are_split_and_kv_heads_kept_where_they_run_out(ways, kv_heads, group):
    local = LLAMA.split("K", ways).of
    assert (local["K"], local["r"], local["i"]) == (kv_heads, group, group + 2)


@pytest.mark.parametrize("ways", [3, 12, 64])
def test_ways_that_do_not_divide_the_heads(ways):
    with pytest.raises(ConfigError) as error:
        LLAMA.split("K", ways)
    assert str(error.value) == f"tensor_parallel_size: {ways} does not divide 32 attention heads with 8 key/value heads"


def test_ways_between_which_kv_heads_cannot_be_dealt():
    with pytest.raises(ConfigError, match="4 does not divide 40 attention heads with 10 key/value heads"):
        Sizes({"K": 10, "r": 4, "i": 6, "h": 128}).split("K", 4)


def test_ways_that_do_not_divide_the_mlp():
    with pytest.raises(ConfigError, match="tensor_parallel_size: 3 does not divide an MLP of 14336"):
        LLAMA.split("F", 3)


def test_vocabularies_are_padded():
    assert LLAMA.split("V", 5).of["V"] == 25_652


def test_what_nobody_shares_stays_whole():
    assert LLAMA.split("", 8) == LLAMA

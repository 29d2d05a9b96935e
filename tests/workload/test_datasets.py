"""Data sets for benchmark clients: what holds for every writer, and texts with the right number of tokens."""

import itertools
import json
import math

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as some

from ksim.flow.request import Request
from ksim.foundation.catalog import find, names
from ksim.foundation.errors import ConfigError, DataError
from ksim.workload.datasets.writers import WORDS, Aiperf, Mooncake, Prose, VllmCustom
from ksim.workload.reading import read
from ksim.workload.replay import Replay
from tests.cli.command import TRACE, ksim
from tests.properties import examples

WRITERS = names("workload.datasets")


def back(path, writer, requests, timed=True, chunk_tokens=None):
    """The rows that the writer's reader reads of what it wrote."""
    path.write_text("".join(json.dumps(row) + "\n" for row in writer.rows(requests, timed)))
    return list(read(path, {"name": writer.reader, **writer.reading}, chunk_tokens, arrivals=itertools.count()))


def sharing(rows):
    """Which blocks of which rows are equal: what names mean, whatever they are called."""
    numbers = {}
    return [[numbers.setdefault(name, len(numbers)) for name in row.chunks] for row in rows]


TURN = some.tuples(some.integers(0, 4), some.integers(1, 2000), some.integers(1, 90))


@examples(40)
@given(name=some.sampled_from(WRITERS), turns=some.lists(TURN, min_size=1, max_size=9), gap=some.floats(0, 1e5))
def test_what_is_written_reads_as_the_same_requests(tmp_path_factory, name, turns, gap):
    """Sessions of turns that each add to all before them; session 0 is none."""
    said, requests = {}, []
    for number, (session, new, output) in enumerate(sorted(turns, key=lambda turn: turn[0])):
        before = said.get(session, 0) if session else 0
        delay = round(gap / 7, 6) if before else 0.0
        arrival = requests[-1].arrival if before else round(gap * number, 6)
        requests.append(Request(number, arrival, before + new, output, session="s" * session, delay=delay))
        said[session] = before + new + output
    writer = find("workload.datasets", name)()
    rows = back(tmp_path_factory.mktemp("law") / "set.jsonl", writer, requests)
    assert [(row.prompt, row.output) for row in rows] == [(one.prompt, one.output) for one in requests]
    if writer.times:
        first = requests[0].arrival
        assert [row.arrival for row in rows] == pytest.approx([one.arrival - first for one in requests], abs=1e-6)
        assert [row.session for row in rows] == [one.session for one in requests]
        assert [row.delay for row in rows] == pytest.approx([one.delay for one in requests], abs=1e-6)


@pytest.mark.parametrize("block", [512, 64])
@pytest.mark.parametrize("writer", [Mooncake, Aiperf])
def test_blocks_are_shared_as_before_in_blocks_of_any_size(tmp_path, writer, block):
    names = [tuple(("a" if place < 20 * (number + 1) else number, place) for place in range(81)) for number in range(4)]
    prompts = [Request(number, float(number), 1300, 5, names[number], 16) for number in range(4)]
    rows = back(tmp_path / "set.jsonl", writer(block_size=block), prompts, chunk_tokens=block)
    assert all(len(row.chunks) == -(-1300 // block) for row in rows)
    common = [sum(one == two for one, two in zip(rows[0].chunks, row.chunks, strict=True)) for row in rows[1:]]
    assert common == [320 // block] * 3


def test_a_trace_of_mooncakes_own_blocks_is_written_as_it_was(tmp_path):
    lines = [{"timestamp": 3000 * number, "input_length": 1024 - number, "output_length": 3, "hash_ids": [46, number]}
             for number in range(3)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    requests = list(Replay(tmp_path / "trace.jsonl").requests(0))
    rows = back(tmp_path / "set.jsonl", Mooncake(), requests)
    assert sharing(rows) == sharing(requests) and [len(row.chunks) for row in rows] == [2, 2, 2]


def test_a_turn_that_drops_what_was_said_cannot_be_sent_by_aiperf():
    turns = [Request(0, 0.0, 90, 9, session="a"), Request(1, 0.0, 50, 9, session="a")]
    with pytest.raises(ConfigError, match="50 tokens, and 99 were said before it"):
        list(Aiperf().rows(turns, True))


def test_equal_blocks_are_equal_words_and_others_are_not():
    one, two = (Request(number, 0.0, 48, 1, ("system", ("user", number)), 16) for number in range(2))
    first, second = (Prose().text(request).split() for request in (one, two))
    assert len(first) == len(second) == 48
    assert first[:16] == second[:16] and first[16:32] != second[16:32] and first[32:] != second[32:]


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer that knows some words as one token, all others as none, and puts a token before every text."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "<s>": 1} | {
        word: 2 + number for number, word in enumerate(WORDS[:40])}, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(tmp_path / "tokenizer.json"))
    return made


def test_texts_have_as_many_tokens_as_the_tokenizer_counts(tokenizer, tmp_path):
    requests = [Request(number, 0.0, 2 + 97 * number, 1) for number in range(5)]
    rows = list(VllmCustom(str(tmp_path)).rows(requests, False))
    assert [len(tokenizer.encode(row["prompt"]).ids) for row in rows] == [row["prompt_tokens"] for row in rows]
    with pytest.raises(DataError, match="a prompt of 1 tokens, but the tokenizer adds 1 special"):
        list(VllmCustom(str(tmp_path)).rows([Request(0, 0.0, 1, 1)], False))


def test_a_tokenizer_that_is_none_is_an_error(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    for path, says in (("t.json", "is no tokenizer.json"), ("no.json", "is not there")):
        with pytest.raises(DataError, match=says):
            list(VllmCustom(str(tmp_path / path)).rows([Request(0, 0.0, 9, 1)], False))


def test_texts_without_counts_have_four_characters_per_token(tmp_path):
    (tmp_path / "set.jsonl").write_text('{"prompt": "abcdefghi", "output_tokens": 2}\n')
    (row,) = read(tmp_path / "set.jsonl", arrivals=iter([0.0]))
    assert (row.prompt, row.output) == (3, 2)


@pytest.mark.parametrize("name", ["mooncake", "vllm-custom", "aiperf"])
def test_the_command_writes_and_reads_back(tmp_path, name):
    (tmp_path / "t.csv").write_text("arrival,prompt,output,tenant\n0,100,5,ann\n0.5,200,6,\n")
    out = ksim("trace", "t.csv", "--to", name, "-o", "set.jsonl", "--json", "out.json", folder=tmp_path)
    assert f"2 requests written into set.jsonl as {name}" in out and "note: not written: tenants of 1 requests" in out
    assert json.loads((tmp_path / "out.json").read_text())["requests"] == 2
    assert "2 requests, " in ksim("trace", "set.jsonl", folder=tmp_path)


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    (tmp_path / "t.csv").write_text(TRACE + "1,x,3\n")
    (tmp_path / "set.jsonl").write_text("mine")
    assert "t.csv:4" in ksim("trace", "t.csv", "--to", "mooncake", "-o", "set.jsonl", folder=tmp_path, code=1)
    assert (tmp_path / "set.jsonl").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


def test_requests_without_times_are_written_without_any(tmp_path):
    requests = [evolve(Request(0, 0.0, 9, 2), arrival=float(number)) for number in range(3)]
    assert all("timestamp" not in row for row in Aiperf().rows(requests, timed=False))
    assert all(math.isnan(row.arrival) for row in find("workload.traces", "vllm_custom")().rows(
        _Lines(list(VllmCustom().rows(requests, False))), None))


class _Lines(list):
    """Lines of JSON, as a reader wants them."""

    least_tokens = 1

    def __iter__(self):
        return map(json.dumps, super().__iter__())

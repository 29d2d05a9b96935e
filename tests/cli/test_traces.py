"""`ksim trace`, and docs/traces.md: its examples run, and its table says what the readers say."""

import json
import re
from typing import Any

import pytest

from ksim.foundation.catalog import names
from ksim.workload.reading import FOLDER, reader
from ksim.workload.rows import FIELDS
from tests.cli.command import ROOT, ksim, ksim_here

PAGE = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    ksim (.*)$", PAGE, re.MULTILINE)
MILLIONS = "ts,in,out\n" + "".join(f"{1_700_000_000_000_000 + row * 3_541_000},10,5\n" for row in range(1001))


def shown(folder, *words):
    outcome = ksim_here("trace", *words, folder=folder)
    assert outcome.status == 0, outcome.stderr
    return outcome.stdout


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES:
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_the_page_has_examples():
    assert len(FILES) == 6 and len(COMMANDS) == 16


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(folder, command):
    outcome = ksim_here(*command.split(), folder=folder)
    assert outcome.status == 0, outcome.stderr


def test_the_page_lists_every_format_as_its_reader_is():
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]*\| (\w+ \| \w+) \|.*\|.*\|$", PAGE, re.MULTILINE))
    readers: dict[str, Any] = {name: reader(name) for name in names(FOLDER)}
    assert rows == {name: f"{made.time_unit or 'none'} | {made.empty}" for name, made in readers.items()}


def test_the_page_lists_every_field():
    fields = PAGE.partition("| field |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", fields, re.MULTILINE)) == FIELDS


@pytest.mark.parametrize(("unit", "span"), [
    (["--time-unit", "ms"], "in ms (--time-unit changes it): from first to last 40 days 23 h"),
    (["--time-unit", "us"], "in us (--time-unit changes it): from first to last 59 min 1 s"),
])
def test_the_printed_time_span_shows_a_wrong_unit(tmp_path, unit, span):
    (tmp_path / "t.csv").write_text(MILLIONS)
    assert span in shown(tmp_path, "t.csv", "--columns", "arrival=ts,prompt=in,output=out", *unit)


def test_times_that_span_decades_ask_for_a_unit(tmp_path):
    (tmp_path / "t.csv").write_text(MILLIONS)
    error = ksim("trace", "t.csv", "--columns", "arrival=ts,prompt=in,output=out", folder=tmp_path, code=1)
    assert "t.csv: arrivals span 11,598 days" in error and "--time-unit us" in error


def test_dates_and_traces_without_times_say_so(folder):
    assert "arrival times are dates: from first to last 1.75 s" in shown(
        folder, "calls.jsonl", "--columns", "arrival=sent,prompt=usage.prompt_tokens,output=usage.completion_tokens")
    printed = shown(folder, "chats.json")
    assert "chats.json: 3 requests, sharegpt format" in printed
    assert "no arrival times: to replay it, set --request-rate" in printed
    assert "note: token counts are estimated from the text, at 4 characters a token" in printed
    assert "arrivals (s" not in printed and "Poisson" not in printed


def test_every_format_is_listed(tmp_path):
    printed = ksim_here("list", "traces", folder=tmp_path).stdout
    assert all(re.search(rf"^{name} +\S+", printed, re.MULTILINE) for name in names(FOLDER))


def test_rows_that_are_left_out_are_counted(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,5,1\n1,0,1\n2,5,0\n")
    printed = shown(tmp_path, "t.csv", "--skip-empty")
    assert "note: rows without output tokens (failed requests), dropped: 1" in printed
    assert "note: rows without prompt tokens, dropped: 1" in printed


NAMED = "arrival,prompt,output,hash_ids\n0,48,9,1|2|3\n1,48,9,1|2|4\n2,48,9,5|6|7\n3,48,9,1|2|3\n"


def test_the_cache_curve_is_printed_drawn_and_written(tmp_path):
    (tmp_path / "t.csv").write_text(NAMED)
    printed = shown(tmp_path, "t.csv", "--cache-curve", "--cache-sizes", "2,6,7", "--tier", "gpu=4", "--tier", "cpu=3",
                    "--plot", "--json", "c.json")
    assert "4 requests, plain format" in printed and "blocks of 16 tokens; 12 in all prompts, of 7 different" in printed
    rows = {row.split()[0]: row.split()[1:] for row in printed.splitlines() if row.strip()}
    # Of 12 blocks, two come again at once, and these with one more after others.
    assert rows["2"] == ["32", "0.00000", "0.16667", "0.33333", "0.00000", "0.16667", "0.33333"]
    assert rows["7"][:4] == ["112", "0.41667", "0.41667", "0.41667"]
    assert rows["gpu"][2:4] == ["0.16667", "0.25000"] and rows["cpu"][2] == "0.25000"
    assert (tmp_path / "t_cache.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "c.json").read_text())
    assert written["prompt_blocks"] == 12 and [row["blocks"] for row in written["sizes"]] == [2, 6, 7]
    assert written["tiers"][1]["exclusive"]["lru"] == {
        "hit_blocks": 3, "hit_tokens": 48, "hit_rate_blocks": 0.25, "hit_rate_tokens": 0.25}


def test_the_size_of_a_block_follows_from_the_model_its_dtype_and_its_gpus(tmp_path):
    (tmp_path / "t.csv").write_text(NAMED)

    def block_bytes(*words):
        shown(tmp_path, "t.csv", "--cache-curve", "--json", "c.json", "--model", *words)
        return json.loads((tmp_path / "c.json").read_text())["block_bytes"]

    # 16 layers, 8 heads of 64 for keys and for values, 2 bytes each, 16 tokens.
    assert block_bytes("llama-3.2-1b") == 16 * 8 * 64 * 2 * 2 * 16
    assert block_bytes("llama-3.2-1b", "--kv-cache-dtype", "fp8") == 16 * 8 * 64 * 2 * 16
    assert block_bytes("llama-3.2-1b", "--tp", "16") == 2 * block_bytes("llama-3.2-1b", "--tp", "8")


def test_the_statistics_of_a_trace_are_written_as_json(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,5,1\n")
    shown(tmp_path, "t.csv", "--json", "t.json")
    written = json.loads((tmp_path / "t.json").read_text())
    assert written["requests"] == 1 and written["prompt"]["max"] == 5 and written["arrivals"]["rate"] is None


def test_a_trace_that_shares_nothing_says_so(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prompt,output,hash_ids\n0,48,9,1|2|3\n")
    assert "No two prompts begin with the same block, so no cache has a hit." in shown(
        tmp_path, "t.csv", "--cache-curve", "--plot")

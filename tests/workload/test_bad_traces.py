"""What a reader says of a file it cannot use: where, what is wrong, what to do."""

import gzip
import sys

import pytest

from ksim.foundation.errors import ConfigError, DataError, UnknownName
from ksim.workload.reading import read
from ksim.workload.replay import Replay
from ksim.workload.rows import Ledger
from ksim.workload.shaping import WINDOW

HEADER = "arrival,prompt,output\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
ROW = '{"timestamp": 0, "input_length": 5, "output_length": 1}\n'


@pytest.mark.parametrize(("content", "message"), [
    ("", "trace: is empty"),
    ("\n\r\n", "trace: is empty"),
    (HEADER, "trace: has no request to replay"),
    (BURSTGPT + "5,GPT-4,7,0,7,API log\n",
     "trace: has no request to replay; rows without output tokens .failed requests., dropped: 1"),
    (HEADER + "0,5,0\n", "trace:2: output is 0; a request has at least one token; .* set empty = .skip."),
    (HEADER + "0,0,5\n", "trace:2: prompt is 0; a request has at least one token"),
    (ROW + '{"timestamp": 5, "input_length": 0, "output_length": 1}\n', "trace:2: input_length is 0; a request has"),
    (HEADER + "-1,5,1\n", "trace:2: arrival is '-1'; expected no negative time"),
    (ROW + '{"timestamp": -5, "input_length": 5, "output_length": 1}\n', "trace:2: timestamp is -5; expected no"),
    ("arrival,prompt,output,priority\n0,5,1,9223372036854775808\n", "trace:2: priority is '9223372036854775808'"),
    ("arrival,prompt,output,prompt\n0,5,1,6\n", "trace:1: has the column 'prompt' 2 times; rename all but one"),
    (b"PAR1\x00\x15\x04" * 9, "trace:1: is not text"),
    (HEADER.encode() + b"0,\xff,1\n", "trace:2: is not text"),
    (HEADER.encode("utf-16"), "trace:1: is not text"),
    (gzip.compress(HEADER.encode() * 99, mtime=0)[:-12], r"trace.*: cannot be read: Compressed file ended"),
    (ROW + '{"timestamp": 5, "input_le', "trace:2: is not a JSON object; is the file cut short"),
    (ROW + "[1]\n", "trace:2: is not a JSON object"),
    (ROW + '{"timestamp": 5, "output_length": 1}\n', "trace:2: has no input_length or input_tokens, only timestamp"),
    (ROW + '{"timestamp": 5, "input_length": true, "output_length": 1}\n', "trace:2: input_length is True; expected"),
    (ROW + '{"timestamp": NaN, "input_length": 5, "output_length": 1}\n', "trace:2: timestamp is nan; expected"),
    (HEADER + "0,NaN,1\n", "trace:2: prompt is 'NaN'; expected a whole number of tokens"),
    (HEADER + "0,5,-1\n", "trace:2: output is '-1'; expected a whole number of tokens"),
    (HEADER + "0,5.5,1\n", "trace:2: prompt is '5.5'; expected a whole number of tokens"),
    (HEADER + "0,1e99,1\n", "trace:2: prompt is '1e99'"),
    (HEADER + "0,,1\n", "trace:2: prompt is ''"),
    (HEADER + "inf,5,1\n", "trace:2: arrival is 'inf'; expected a number"),
    (HEADER + "0,5,1\n\n0,5\n", "trace:4: has 2 fields, but the header has 3; is the file cut short"),
    (HEADER + '0,"5"x,1\n', "trace:2: is not valid CSV"),
    ("arrival,prompt,output,delay\n0,5,1,-2\n", "trace:2: delay is '-2'; expected no negative time"),
    ("arrival,prompt,output,aborted\n0,5,1,-2\n", "trace:2: aborted is '-2'; expected no negative time"),
    ("arrival,prompt,output,aborted\n0,5,1,soon\n", "trace:2: aborted is 'soon'; expected a number"),
    ('{"arrival": 0, "prompt": 5, "output": 1, "aborted": true}\n', "trace:1: aborted is True; expected a number"),
    ("arrival,prompt,output,priority\n0,5,1,high\n", "trace:2: priority is 'high'; expected a whole number"),
])
def test_a_faulty_row_is_an_error_with_file_line_and_remedy(trace, content, message):
    with pytest.raises(DataError, match=message):
        list(Replay(trace(content)).requests(0))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"gone\.csv: No such file"):
        list(Replay(tmp_path / "gone.csv").requests(0))


def test_a_named_format_with_a_missing_column_is_an_error(trace):
    with pytest.raises(DataError, match="trace:1: has no column 'prompt', only arrival, output; is it of another"):
        list(read(trace("arrival,output\n0,1\n"), "plain"))


def test_an_unknown_format_is_an_error_with_a_suggestion(trace):
    with pytest.raises(UnknownName, match="no trace format named 'azur'; did you mean 'azure'"):
        list(read(trace(HEADER), "azur"))


def test_a_reader_of_another_package_can_be_named(trace, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from ksim.workload.rows import Row\nclass Words:\n"
                                      "    def rows(self, lines, chunk_tokens):\n"
                                      "        for line in lines:\n            yield Row(0, len(line), 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [row.prompt for row in read(trace("one\nthree"), "mine:Words")] == [3, 5]
    with pytest.raises(ConfigError, match="mine:Verse"):
        list(read(trace("one"), "mine:Verse"))
    sys.modules.pop("mine")


def test_rows_slightly_out_of_order_are_reordered_and_counted(trace):
    ledger = Ledger()
    rows = read(trace(HEADER + "5,1,1\n3,2,1\n5,3,1\n4,4,1\n"), ledger=ledger)
    assert [(row.arrival, row.prompt) for row in rows] == [(0, 2), (1, 4), (2, 1), (2, 3)]
    assert ledger.reordered == 2


def test_rows_far_out_of_order_need_the_option_sort(trace):
    path = trace(HEADER + "".join(f"{second},1,1\n" for second in range(WINDOW + 9)) + "2,7,1\n")
    with pytest.raises(DataError, match=f"trace:{WINDOW + 11}: arrives more than 1,024 rows after .*sort = true"):
        list(read(path))
    ledger = Ledger()
    assert list(read(path, sorting=True, ledger=ledger))[3].prompt == 7
    assert ledger.reordered == 1

"""Each format, in the bytes its publisher writes."""

import gzip
import json

import pytest

from ksim.foundation.errors import DataError
from ksim.workload.reading import read, recognise
from ksim.workload.rows import Ledger


def lengths(rows):
    return [(row.arrival, row.prompt, row.output) for row in rows]


class TestAzure:
    def test_2023_crlf_seven_digits_no_last_newline(self, trace):
        path = trace(b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
                     b"2023-11-16 18:15:50.9951690,396,109")
        assert lengths(read(path)) == [(0, 374, 44), (4.314579, 396, 109)]

    def test_2024_utc_with_and_without_fraction(self, trace):
        path = trace("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-11 23:59:59.500000+00:00,1452,3\n"
                     "2024-05-12 00:00:00+00:00,584,3\n")
        assert lengths(read(path)) == [(0, 1452, 3), (0.5, 584, 3)]

    def test_2025_images(self, trace):
        path = trace("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,0,770,491\n"
                     "2024-10-15T12:00:05.819Z,1,949,126\n")
        assert lengths(read(path)) == [(0, 770, 491), (5.55, 949, 126)]

    def test_time_without_zone_is_utc(self, trace):
        path = trace("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00,5,5\n"
                     "2024-05-12 01:00:01+01:00,5,5\n")
        assert [row.arrival for row in read(path)] == [0, 1]

    def test_a_faulty_time_is_an_error(self, trace):
        path = trace("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n")
        with pytest.raises(DataError, match=r"trace:2: TIMESTAMP is 'yesterday'; expected a time"):
            list(read(path))


class TestMooncake:
    def test_times_in_ms_and_512_token_blocks(self, trace):
        path = trace('{"timestamp": 27, "input_length": 6955, "output_length": 52, '
                     '"hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 2353, 2354]}\n')
        (row,) = read(path)
        assert (row.arrival, row.prompt, row.output, row.chunk_tokens) == (0, 6955, 52, 512)
        assert len(row.chunks) == 14 and row.chunks[-1] == 2354

    def test_without_block_ids(self, trace):
        path = trace('{"timestamp": 0, "input_length": 10, "output_length": 5}\n')
        assert next(read(path)).chunks == ()

    def test_other_names_of_dynamo(self, trace):
        path = trace('{"created_time": 1000, "input_tokens": 10, "output_tokens": 5, "hash_ids": [1]}\n')
        assert lengths(read(path)) == [(0, 10, 5)]

    def test_other_block_size_is_an_option(self, trace):
        path = trace('{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1, 2, 3]}\n')
        with pytest.raises(DataError, match=r"trace:1: has 3 block ids, but 10 .* blocks of 512; set chunk_tokens"):
            list(read(path))
        assert next(read(path, chunk_tokens=4)).chunks == (1, 2, 3)

    def test_sessions_one_after_the_other(self, trace):
        path = trace('{"session_id": "a", "timestamp": 1000, "input_length": 5, "output_length": 1}\n'
                     '{"session_id": "a", "delay": 250, "input_length": 8, "output_length": 1}\n'
                     '{"session_id": "b", "timestamp": 1500, "input_length": 5, "output_length": 1}\n')
        assert [(row.session, row.arrival, row.delay) for row in read(path)] == [
            ("a", 0, 0), ("a", 0, 0.25), ("b", 0.5, 0)]

    def test_sessions_interleaved(self, trace):
        path = trace('{"session_id": 0, "timestamp": 0, "input_length": 5, "output_length": 1}\n'
                     '{"session_id": 1, "timestamp": 10, "input_length": 5, "output_length": 1}\n'
                     '{"session_id": 0, "delay": 250, "input_length": 8, "output_length": 1}\n')
        assert [(row.session, row.arrival) for row in read(path)] == [("0", 0), ("0", 0), ("1", 0.01)]

    @pytest.mark.parametrize("field", ["text_input", "messages"])
    def test_text_is_refused(self, trace, field):
        path = trace(json.dumps({"timestamp": 0, field: "Hi", "output_length": 5}))
        with pytest.raises(DataError, match=f"trace:1: has {field}; ksim needs lengths: count its tokens"):
            list(read(path))

    def test_first_turn_needs_a_time(self, trace):
        path = trace('{"session_id": "a", "delay": 5, "input_length": 5, "output_length": 1}\n')
        with pytest.raises(DataError, match="has no timestamp or created_time, only session_id"):
            list(read(path))

    def test_rows_that_wait_for_rows_are_refused(self, trace):
        path = trace('{"request_id": "a", "wait_for": ["b"], "timestamp": 0, "input_length": 5, "output_length": 1}\n')
        with pytest.raises(DataError, match=r"wait_for.*use session_id and delay"):
            list(read(path))

    @pytest.mark.parametrize("ids", ['{"history": [1]}', "[[1]]", '"1"', "[1.5]"])
    def test_block_ids_that_are_no_list_of_numbers_are_an_error(self, trace, ids):
        path = trace(f'{{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": {ids}}}\n')
        with pytest.raises(DataError, match="not a list of whole numbers"):
            list(read(path))


class TestBailian:
    def test_times_in_seconds_and_16_token_blocks(self, trace):
        path = trace('{"chat_id":159,"parent_chat_id":-1,"timestamp":61.125,"input_length":33,"output_length":132,'
                     '"type":"text","turn":1,"hash_ids":[1,2,3]}\n')
        (row,) = read(path)
        assert (row.prompt, row.chunk_tokens, row.chunks, row.session) == (33, 16, (1, 2, 3), "159")

    def test_turns_share_the_session_of_their_root(self, trace):
        chats = [(1, -1), (2, 1), (3, 2), (4, -1), (5, 99), (6, 5)]
        path = trace("".join(json.dumps({"chat_id": chat, "parent_chat_id": parent, "timestamp": chat,
                                         "input_length": 3, "output_length": 1}) + "\n" for chat, parent in chats))
        assert [row.session for row in read(path)] == ["1", "1", "1", "4", "99", "99"]


class TestBurstGPT:
    def test_failures_are_dropped_and_counted(self, trace):
        path = trace("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                     "5,ChatGPT,472,18,490,Conversation log\n9,GPT-4,0,0,0,Conversation log\n12,GPT-4,7,0,7,API log\n"
                     "45,ChatGPT,1087,230,1317,Conversation log\n")
        ledger = Ledger()
        assert lengths(read(path, ledger=ledger)) == [(0, 472, 18), (40, 1087, 230)]
        assert (ledger.rows, ledger.zero_outputs) == (4, 2)

    def test_newer_columns_come_in_another_order(self, trace):
        path = trace("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                     "19440110.0,6f9a,2.5,ChatGPT,472,18,490,Conversation log\n19440111.0,,1,GPT-4,7,2,9,API log\n")
        assert [(row.arrival, row.prompt, row.session) for row in read(path)] == [(0, 472, "6f9a"), (1, 7, "")]


class TestVidur:
    def test_arrivals_need_not_begin_at_zero(self, trace):
        path = trace("arrived_at,num_prefill_tokens,num_decode_tokens\n4.5,4808,10\n4.75,3180.0,8\n")
        assert lengths(read(path)) == [(0, 4808, 10), (0.25, 3180, 8)]

    def test_blocks_of_frontier(self, trace):
        path = trace('arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n'
                     '0.0,32,2,7,11|22\n10.0,32,2,7,"[11, 33]"\n10.0,32,2,7,\n')
        rows = list(read(path))
        assert [row.chunks for row in rows] == [(11, 22), (11, 33), ()]
        assert {row.session for row in rows} == {""}

    def test_sessions_of_frontier_with_new_tokens_only_are_refused(self, trace):
        path = trace("arrived_at,num_prefill_tokens,num_decode_tokens,session_id\n0.0,32,16,7\n")
        with pytest.raises(DataError, match="only what is new to its session; write whole prompts"):
            list(read(path))


class TestPlain:
    def test_three_columns_in_any_order(self, trace):
        assert lengths(read(trace("output,arrival,prompt\n5,0.5,10\n"))) == [(0, 10, 5)]

    def test_optional_columns(self, trace):
        path = trace("arrival,prompt,output,priority,session,delay\n0,10,5,-2,a,\n0,20,5,,a,1.5\n")
        assert [(row.priority, row.session, row.delay) for row in read(path)] == [(-2, "a", 0), (0, "a", 1.5)]


class TestRecognition:
    def test_bom_blank_lines_and_gzip_whatever_the_name(self, trace):
        path = trace(gzip.compress("\ufeffarrival,prompt,output\r\n\r\n0,1,2\r\n\r\n".encode()), "trace.csv")
        assert recognise(path) == "plain"
        assert lengths(read(path)) == [(0, 1, 2)]

    def test_a_file_that_fits_no_format_is_an_error(self, trace):
        with pytest.raises(DataError, match=r"trace:1: is in no known format \(begins 'a,b'\); name one with --format"):
            recognise(trace("a,b\n1,2\n"))

    def test_a_file_that_fits_two_formats_is_an_error(self, trace):
        path = trace("arrival,prompt,output,arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,2,0,3,4\n")
        with pytest.raises(DataError, match="fits the formats plain and vidur"):
            recognise(path)
        assert lengths(read(path, "vidur")) == [(0, 3, 4)]

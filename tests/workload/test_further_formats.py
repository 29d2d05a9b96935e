"""The formats of simulators, generators and agents, in small files made for these tests."""

import gzip
import json
from collections import Counter
from itertools import pairwise

import pytest

from ksim.foundation.config import Choice
from ksim.foundation.errors import DataError
from ksim.workload.reading import read, recognise
from ksim.workload.replay import Replay
from ksim.workload.rows import Ledger
from ksim.workload.traces.weka import Weka


def replayed(path, rate=None, **settings):
    return list(Replay(path, rate=rate, **settings).requests(0))


def refused(path, message, **settings):
    with pytest.raises(DataError) as caught:
        replayed(path, rate=1, **settings)
    assert message in str(caught.value)


class TestAIBrix:
    def test_both_spellings_and_several_requests_at_a_time(self, trace):
        path = trace('{"timestamp": 500, "requests": [{"Prompt Length": 9, "Output Length": 2, "prompt": "hi"}]}\n'
                     '{"timestamp": 750, "requests": [{"prompt_length": 8, "output_length": 3, "session_id": "a"}, '
                     '{"prompt_length": 7, "output_length": 0}, {"prompt_length": 6, "output_length": 1}]}\n')
        ledger = Ledger()
        rows = [(row.arrival, row.prompt, row.output, row.session) for row in read(path, ledger=ledger)]
        assert rows == [(0, 9, 2, ""), (0.25, 8, 3, "a"), (0.25, 6, 1, "")]
        assert ledger.zero_outputs == 1

    @pytest.mark.parametrize(("requests", "message"), [
        ('[{"prompt_length": 9, "output_length": null}]', "requests[0] has no output_length or Output Length, only"),
        ('[{"prompt_length": 9, "output_length": -1}]', "requests[0].output_length is -1; expected a whole number"),
        ("[7]", "requests[0] is 7; expected a request with prompt_length"),
        ('{"prompt_length": 9}', "requests is {'prompt_length': 9}; expected a list"),
    ])
    def test_faulty_requests_are_an_error(self, trace, requests, message):
        path = trace(f'{{"timestamp": 1, "requests": []}}\n{{"timestamp": 2, "requests": {requests}}}\n')
        refused(path, f"trace:2: {message}")


class TestSplitwise:
    HEADER = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"

    def test_seconds_and_sizes(self, trace):
        rows = replayed(trace(self.HEADER + "0,2,0,1,1,400,30\n1,2,0,3.5,1,200,8\n"))
        assert [(request.arrival, request.prompt, request.output) for request in rows] == [(0, 400, 30), (2.5, 200, 8)]

    def test_batches_are_refused(self, trace):
        refused(trace(self.HEADER + "0,2,0,1,4,400,30\n"), "trace:2: batch_size is '4'; ksim reads one request per row")


class TestRAGPulse:
    PIECES = '{"sys_prompt_id": 1, "token_length": 20}\n{"sys_prompt_id": 2, "token_length": 15}\n'

    def rows(self, *prompts):
        return "".join(json.dumps({
            "timestamp": str(10 * place), "input_length": length, "output_length": 4, "session_id": f"s{place}",
            "hash_ids": {"sys_prompt": [1, 2], "passages_ids": [passage], "history": [], "user_input": [place + 90]},
        }) + "\n" for place, (length, passage) in enumerate(prompts))

    def test_seconds_sessions_and_lengths(self, trace):
        path = trace(self.rows((60, 7), (50, 8)))
        assert recognise(path) == "ragpulse"
        assert [(row.arrival, row.prompt, row.session, row.chunks) for row in read(path)] == [
            (0, 60, "s0", ()), (10, 50, "s1", ())]

    def test_prefixes_are_shared_as_far_as_the_pieces_are_known(self, trace):
        trace(self.PIECES, "1_sys_prompt.jsonl")
        trace('{"passages_id": 7, "token_length": 29}\n', "2_passages.jsonl")
        first, second, third = replayed(trace(self.rows((70, 7), (60, 8), (40, 7))))
        # 20 + 15 + 29 tokens are named, then comes a question of unknown length.
        assert first.chunks == ((0, "1"), (16, "1", "2"), (12, "2", "7"), (13, "7"))
        assert second.chunks == first.chunks[:2], "the passage is not known, nor is what follows it"
        assert third.chunks == first.chunks[:2], "a prompt of 40 tokens has two full chunks"

    def test_pieces_of_no_tokens_and_pieces_inside_a_chunk(self, trace):
        trace('{"id": 1, "token_length": 3}\n{"id": 2, "token_length": 0}\n{"id": 7, "token_length": 30}\n',
              "1_sys_prompt.jsonl")
        (request,) = replayed(trace(self.rows((99, 7))))
        assert request.chunks == ((0, "1", "7"), (13, "7"))

    @pytest.mark.parametrize(("pieces", "message"), [
        ('{"sys_prompt_id": 1}', "1_sys_prompt.jsonl:1: has no token_length, only sys_prompt_id"),
        ('{"sys_prompt_id": [1], "token_length": 3}', "1_sys_prompt.jsonl:1: sys_prompt_id is [1]; expected a text or"),
    ])
    def test_faulty_pieces_are_an_error(self, trace, pieces, message):
        trace(pieces, "1_sys_prompt.jsonl")
        refused(trace(self.rows((70, 7))), message)

    def test_faulty_ids_are_an_error(self, trace):
        row = '{"timestamp": "1", "input_length": 5, "output_length": 1, "hash_ids": {"sys_prompt": 4}}\n'
        refused(trace(row), "trace:1: hash_ids is {'sys_prompt': 4}; expected an object of lists such as sys_prompt")


def talk(*messages, name="a"):
    return {"id": name, "conversations": [{"from": speaker, "value": text} for speaker, text in messages]}


class TestShareGPT:
    TALKS = (talk(("system", "s" * 8), ("human", "h" * 40), ("gpt", "g" * 61), ("human", "h"), ("gpt", "g" * 20)),
             talk(("gpt", "g" * 4), ("human", "h" * 12), ("gpt", "g" * 4), name="b"))

    @pytest.mark.parametrize("text", [
        json.dumps(TALKS), json.dumps(TALKS, indent=2), "\n".join(map(json.dumps, TALKS)),
        "".join(map(json.dumps, TALKS)), "[\n" + ",\n".join(map(json.dumps, TALKS)) + "\n]\n"])
    def test_turns_hold_what_was_said_before(self, trace, text):
        path = trace(text)
        assert recognise(path) == "sharegpt"
        rows = replayed(path, rate=5)
        # 2 and 10 tokens asked, 16 answered; then 1 more; an answer that comes first is part of the prompt.
        assert [(r.session, r.prompt, r.output) for r in rows] == [("0", 12, 16), ("0", 29, 5), ("1", 4, 1)]
        assert rows[0].chunks == ((0, 0),) and rows[1].chunks == ((0, 0), (0, 1))
        assert rows[0].arrival == rows[1].arrival < rows[2].arrival

    def test_characters_per_token_and_turns_are_options(self, trace):
        path = trace(json.dumps(self.TALKS))
        options = Choice("sharegpt", {"characters_per_token": 2.0, "turns": 1})
        assert [(r.prompt, r.output) for r in replayed(path, rate=5, format=options)] == [(24, 31), (8, 2)]

    def test_estimated_lengths_are_remarked(self, trace):
        ledger = Ledger()
        list(Replay(trace(json.dumps(self.TALKS)), rate=5).requests(0, ledger))
        assert ledger.remarks() == ["token counts are estimated from the text, at 4 characters a token",
                                    "the trace has no arrival times; Poisson arrivals at 5/s"]

    def test_text_may_look_like_json(self, trace):
        path = trace(json.dumps([talk(("human", 'a "} ] { \\" } \\'), ("gpt", "}\n{"))], indent=1))
        assert len(replayed(path, rate=1)) == 1

    def test_conversations_without_an_answer_are_no_requests(self, trace):
        path = trace(json.dumps([talk(("human", "h")), talk(), talk(("human", "h"), ("gpt", "")),
                                 talk(("human", "h"), ("gpt", "g"))]))
        assert len(replayed(path, rate=1)) == 1

    def test_several_conversations_need_a_rate(self, trace):
        with pytest.raises(DataError, match="has no arrival time; set a rate"):
            replayed(trace(json.dumps(self.TALKS)))

    @pytest.mark.parametrize(("text", "message"), [
        ('[{"id": 1, "conversations": 5}]', "trace:1: conversations is 5; expected a list of messages"),
        ('[{"id": 1, "conversations": [5]}]', "trace:1: conversations[0] is 5; expected a message with from and value"),
        ('[{"id": 1, "conversations": [{"from": "human", "value": 5}]}]', "conversations[0].value is 5; expected"),
        ('[{"id": 1, "conversations": [{"from": "human"}]}]', "conversations[0] has no value, only from"),
        ('[{"id": 1}]', "trace:1: has no conversations, only id"),
        ('[\n{"id": 1,\n"conversations": [', "trace:3: ends inside a JSON object; is the file cut short?"),
        ('[\n{"conversations": []},\n7]', "trace:3: is not a JSON object; is the file cut short?"),
        ('{"conversations": []}}', "trace:1: is not a JSON object"),
        ('[{"conversations": [}]', "trace:1: is not a JSON object"),
    ])
    def test_a_faulty_file_is_an_error(self, trace, text, message):
        refused(trace(text), message, format="sharegpt")


def call(t, prompt, output, ids, **more):
    return {"t": t, "type": "n", "in": prompt, "out": output, "hash_ids": ids, **more}


def session(*requests, name="one", **more):
    return {"id": name, "block_size": 4, "hash_id_scope": "local", "requests": list(requests), **more}


class TestWeka:
    def test_turns_follow_after_the_recorded_think_time(self, trace):
        path = trace(json.dumps(session(call(0, 9, 5, [1, 2], api_time=2.0, think_time=0.0),
                                        call(12, 14, 3, [1, 2, 4], api_time=1.0, think_time=10.0))))
        assert recognise(path) == "weka"
        first, second = replayed(path)  # one session needs no rate
        assert (first.arrival, second.arrival, first.delay, second.delay) == (0, 0, 0, 10)
        assert first.session == second.session == "one" and first.chunk_tokens == 4
        assert second.chunks[:2] == first.chunks

    def test_sub_agents_are_turns_in_their_place(self, trace):
        agent = {"t": 4.0, "type": "subagent", "requests": [call(0, 4, 2, [9], api_time=1.0, think_time=0.0),
                                                            call(3, 8, 2, [9, 8], api_time=1.0, think_time=2.0)]}
        path = trace(json.dumps(session(call(0, 8, 5, [1, 2], api_time=2.0), agent,
                                        call(10, 12, 3, [1, 2, 3], think_time=8.0), call(11, 12, 3, [1, 2, 3]))))
        # The first call ends at 2 and the agent begins at 4; its last call ends at 8 and the next begins at 10.
        assert [(r.prompt, r.delay) for r in replayed(path)] == [(8, 0), (4, 2), (8, 2), (12, 2), (12, 1)]

    @pytest.mark.parametrize(("scope", "shared"), [("local", False), ("global", True)])
    def test_ids_are_a_session_s_own_if_local(self, trace, scope, shared):
        sessions = [session(call(0, 8, 1, [1, 2]), name=name, hash_id_scope=scope) for name in "ab"]
        first, second = replayed(trace("\n".join(map(json.dumps, sessions))), rate=2)
        assert (first.chunks == second.chunks) is shared
        assert first.arrival < second.arrival

    def test_think_times_keep_their_length_at_any_rate(self, trace):
        sessions = [session(call(0, 8, 1, [1, 2]), call(9, 8, 1, [1, 2], think_time=7.0), name=name) for name in "ab"]
        assert {r.delay for r in replayed(trace("\n".join(map(json.dumps, sessions))), rate=40)} == {0, 7}

    def test_aborted_calls_are_dropped_and_counted(self, trace):
        ledger = Ledger()
        path = trace(json.dumps(session(call(0, 8, 0, [1, 2]), call(1, 8, 1, [1, 2]))))
        assert len(list(Replay(path).requests(0, ledger))) == 1 and ledger.zero_outputs == 1

    @pytest.mark.parametrize(("text", "message"), [
        (session(call(0, 8, 1, [1])), "has 1 block ids, but 8 prompt tokens fill 2 blocks of 4; set chunk_tokens"),
        (session(call(0, -8, 1, [])), "requests[0].in is -8; expected a whole number of tokens"),
        (session({"t": 0, "in": 3}), "requests[0] has no out, only t, in"),
        (session({"in": 3, "out": 3}), "requests[0] has no t, only in, out"),
        (session(3), "requests[0] is 3; expected a call"),
        (session({"t": 1, "type": "subagent"}), "requests[0] has no requests, only t, type"),
        (session({"t": 1, "type": "subagent", "requests": [{"t": 1}]}), "requests[0].requests[0] has no in, only t"),
        (session(call(0, 8, 1, []), call(0, 8, 1, [], think_time=-1)), "requests[1].think_time is -1; expected no neg"),
        (session(hash_id_scope="tenant"), "hash_id_scope is 'tenant'; expected local or global"),
        (session(block_size=0), "block_size is 0; expected at least 1"),
    ])
    def test_faulty_sessions_are_an_error(self, trace, text, message):
        refused(trace(json.dumps(text)), f"trace:1: {message}", format="weka")

    def test_a_folder_of_sessions_is_one_trace(self, tmp_path):
        first, second = Weka.example.splitlines()
        for name, text in (("b.json", second), ("a.json", first), ("notes.txt", "hello"), (".hidden.json", "{")):
            (tmp_path / name).write_text(text)
        ledger = Ledger()
        together = list(Replay(tmp_path).requests(0, ledger))
        assert [request.session for request in together] == ["one"] * 3 + ["two"]
        assert {request.arrival for request in together} == {0.0} and "all start at 0 s" in ledger.remarks()[0]
        spread = list(Replay(tmp_path, rate=2.0).requests(0))
        assert spread[-1].arrival > 0 and [request.prompt for request in spread] == [9, 4, 14, 8]
        (tmp_path / "c.json").write_text(first)
        with pytest.raises(DataError, match="c.json:1: session 'one' is in the trace twice"):
            list(Replay(tmp_path).requests(0))

    def test_a_folder_of_anything_else_is_refused(self, tmp_path):
        with pytest.raises(DataError, match="is a folder; name a file in it"):
            list(Replay(tmp_path).requests(0))
        (tmp_path / "a.jsonl").write_text('{"arrival": 0, "prompt": 2, "output": 3}\n')
        with pytest.raises(DataError, match="is a folder of plain files; name a file in it"):
            list(Replay(tmp_path).requests(0))

    def test_a_repeated_session_is_an_error(self, trace):
        refused(trace(2 * (json.dumps(session(call(0, 8, 1, []))) + "\n")), "trace:2: session 'one' is in the trace")


class TestServeGen:
    LENGTHS = ('{"0": {"input_tokens": "{20: 0.25, 300: 0.75}", "output_tokens": "{5: 1.0}"},'
               ' "21600": {"input_tokens": "{40: 1.0}", "output_tokens": "{1: 0.5, 9: 0.5}"},'
               ' "43200": {"input_tokens": "{}", "output_tokens": "{}"}}')
    RATES = "0,0.5,1.5,Gamma,0.5,4\n600,0,0,,0,0\n21600,0.1,1.2,Weibull,0.8,8\n"

    @pytest.fixture
    def client(self, trace):
        def write(rates=self.RATES, lengths=self.LENGTHS, packed=False):
            content = gzip.compress(lengths.encode()) if packed else lengths
            trace(content, "chunk-3-dataset.json" + (".gz" if packed else ""))
            return trace(rates, "chunk-3-trace.csv")

        return write

    @pytest.mark.parametrize("packed", [False, True])
    def test_each_window_has_its_rate_and_lengths(self, client, packed):
        path = client(packed=packed)
        assert recognise(path) == "servegen"
        rows = list(read(path))
        early, late = rows[:300], rows[300:]
        assert len(late) == 60
        origin = early[0].arrival - late[0].arrival  # the first request is at 0
        assert 0 <= early[-1].arrival < 600 and 21_000 < -origin < 22_200
        assert {row.prompt for row in early} == {20, 300} and {row.output for row in early} == {5}
        assert {row.prompt for row in late} == {40} and {row.output for row in late} == {1, 9}
        assert 0.6 < sum(row.prompt == 300 for row in early) / 300 < 0.9, "three quarters of the first window"

    def test_gaps_vary_as_the_window_says(self, client):
        rows = list(read(client("0,16,2.0,Gamma,0.25,0.25\n")))
        gaps = [later.arrival - earlier.arrival for earlier, later in pairwise(rows)]
        mean = sum(gaps) / len(gaps)
        variation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean
        assert len(rows) == 9600 and variation == pytest.approx(2.0, rel=0.1)

    def test_the_seed_of_the_run_decides_what_is_drawn(self, client):
        replay = Replay(client())
        assert list(replay.requests(1)) == list(replay.requests(1)) != list(replay.requests(2))

    @pytest.mark.parametrize("gaps", ["Gamma,1e-300,1", "Gamma,1e9,1e-318", "Gamma,1e300,1e300", "Weibull,1e-9,1",
                                      "Weibull,1e300,1"])
    def test_gaps_beyond_all_numbers_are_even(self, client, gaps):
        arrivals = [row.arrival for row in read(client(f"0,0.1,1,{gaps}\n"))]
        assert len(arrivals) == 60 and arrivals[-1] < 600
        assert arrivals == pytest.approx([arrivals[1] * place for place in range(60)], rel=1e-3)

    def test_a_folder_is_a_pool_of_clients(self, client, trace):
        path = client("0,0.1,1,Gamma,1,10\n")
        trace("0,0.05,1,Gamma,1,10\n600,0.05,1,Gamma,1,10\n", "chunk-12-trace.csv")
        trace(self.LENGTHS, "chunk-12-dataset.json")
        pool = replayed(path.parent, format="servegen")
        assert [request.arrival for request in pool] == sorted(request.arrival for request in pool)
        assert Counter(request.tenant for request in pool) == {"chunk-3": 60, "chunk-12": 60}
        first = [request.arrival for request in pool if request.tenant == "chunk-3"]
        assert first != [request.arrival for request in pool if request.tenant == "chunk-12"]

    def test_a_folder_without_clients_is_an_error(self, tmp_path):
        refused(tmp_path, "holds no client of ServeGen; expected files such as chunk-0-trace.csv", format="servegen")
        refused(tmp_path, "is a folder; name a file in it")

    @pytest.mark.parametrize(("rates", "lengths", "message"), [
        ("0,0.5,1,Gamma,0.5,4\n0,1,1,Gamma,1,1\n", LENGTHS, "trace.csv:2: starts at 0 s, not after the window before"),
        ("0,0.5,1,Pareto,0.5,4\n", LENGTHS, "trace.csv:1: has traffic, but its gaps are 'Pareto' of shape '0.5' and"),
        ("0,0.5,1,Gamma,0,4\n", LENGTHS, "trace.csv:1: has traffic, but its gaps are 'Gamma' of shape '0' and"),
        ("0,1e9,1,Gamma,1,4\n", LENGTHS, "trace.csv:1: rate is '1e9'; expected at most 16,667 requests/s"),
        ("0,-1,1,Gamma,1,4\n", LENGTHS, "trace.csv:1: rate is '-1'; expected no negative"),
        ("43200,1,1,Gamma,1,4\n", LENGTHS, "trace.csv:1: has traffic at 43200 s, but chunk-3-dataset.json has no"),
        (RATES, '{"7200": {}}', "trace.csv:1: has traffic at 0 s, but chunk-3-dataset.json has no input_tokens there"),
        (RATES, '{"noon": {}}', "dataset.json:1: has keys ['noon']; expected the starts of windows, in seconds"),
        (RATES, '{"0": {"input_tokens": "{20: 0.5", "output_tokens": "{5: 1.0}"}}', "tokens is '{20: 0.5'; expected"),
        (RATES, '{"0": {"input_tokens": "{20: -1.0}", "output_tokens": "{}"}}', "tokens is '{20: -1.0}'; expected"),
        (RATES, '{"0": {"input_tokens": "{20: 0.0}", "output_tokens": "{}"}}', "input_tokens is '{20: 0.0}'; expected"),
        (RATES, '{"0": {"input_tokens": 7, "output_tokens": "{}"}}', "input_tokens is 7; expected a dict"),
        (RATES, '{"0": {"input_tokens": "open(1)", "output_tokens": "{}"}}', "tokens is 'open(1)'; expected"),
    ])
    def test_faulty_clients_are_an_error(self, client, rates, lengths, message):
        refused(client(rates, lengths), message, format="servegen")

    def test_rates_without_lengths_are_an_error(self, trace):
        refused(trace(self.RATES, "chunk-3-trace.csv"), "not beside it: chunk-3-dataset.json is missing")
        refused(trace(self.RATES, "rates.csv"), "does not have a name of ServeGen; expected chunk-i-trace.csv")

"""Files of no known format: columns and units that the user names."""

import json

import pytest

from ksim.foundation.config import Choice, plain, structure
from ksim.foundation.errors import ConfigError, DataError
from ksim.workload.reading import read
from ksim.workload.replay import Replay, Workload
from ksim.workload.rows import Ledger, unit_of

OWN = {"arrival": "ts", "prompt": "input_length", "output": "output_length"}
CSV = "id,ts,input_length,output_length\n7,1500,10,2\n8,3500,20,3\n"
JSON = ('{"ts": 1500, "input_length": 10, "output_length": 2}\n'
        '{"ts": 3500, "input_length": 20, "output_length": 3, "user": "bob"}\n')


def requests(path, **settings):
    return list(Replay(path, **settings).requests(0))


@pytest.mark.parametrize("content", [CSV, JSON, f"[{','.join(JSON.splitlines())}]",
                                     json.dumps([json.loads(line) for line in JSON.splitlines()], indent=2)])
@pytest.mark.parametrize(("unit", "seconds"), [
    (None, 2000), ("s", 2000), ("ms", 2), ("us", 0.002), ("ns", 2e-6), ("min", 120_000), ("h", 7_200_000)])
def test_columns_and_time_unit_can_be_named(trace, content, unit, seconds):
    replayed = requests(trace(content), columns=OWN, time_unit=unit)
    assert [(request.prompt, request.output) for request in replayed] == [(10, 2), (20, 3)]
    assert [request.arrival for request in replayed] == pytest.approx([0, seconds])


def test_every_field_of_a_request_can_be_a_column(trace):
    path = trace("at,in,out,prio,chat,wait,who,blocks\n0,20,1,-3,a,,ann,x|y\n"
                 '9,36,2,,a,2500,,"[""x"", ""y"", 3]"\n')
    columns = {"arrival": "at", "prompt": "in", "output": "out", "priority": "prio", "session": "chat",
               "delay": "wait", "tenant": "who", "hash_ids": "blocks"}
    first, second = requests(path, columns=columns, time_unit="ms")
    assert (first.priority, first.session, first.delay, first.tenant, first.chunks) == (-3, "a", 0, "ann", ("x", "y"))
    assert (second.priority, second.session, second.delay, second.tenant) == (0, "a", 2.5, "")
    assert (second.arrival, second.chunks, second.chunk_tokens) == (0.009, ("x", "y", 3), 16)


def test_every_field_of_a_request_can_be_a_key_of_json(trace):
    path = trace('{"arrival": 0, "prompt": 20, "output": 1, "priority": 2, "session": 5, "delay": null, '
                 '"tenant": "ann", "hash_ids": [1, 2]}\n{"arrival": 1, "prompt": 9, "output": 1}\n')
    first, second = requests(path)  # ksim's own names are recognised
    assert (first.priority, first.session, first.tenant, first.chunks) == (2, "5", "ann", (1, 2))
    assert (second.priority, second.session, second.tenant, second.chunks) == (0, "", "", ())


@pytest.mark.parametrize(("content", "columns"), [
    ("ts,input_length,output_length,hung_up_ms\n0,5,2,\n1,5,2,250\n2,5,2,0\n", OWN | {"aborted": "hung_up_ms"}),
    ('{"arrival": 0, "prompt": 5, "output": 2, "aborted": null}\n{"arrival": 1, "prompt": 5, "output": 2, "aborted": '
     '0.25}\n{"arrival": 2, "prompt": 5, "output": 2, "aborted": 0}\n', {})])
def test_a_trace_says_when_clients_hang_up(trace, content, columns):
    workload = Workload(replay=Replay(trace(content), time_scale=2.0, columns=columns))
    assert workload.may_abort and [request.aborted for request in workload.requests(0)] == [None, 0.5, 0.0]


@pytest.mark.parametrize("content", [CSV, JSON, "", "arrival,prompt,output\n0,5,2\n",
                                     '{"timestamp": 0, "input_length": 5, "output_length": 1, "aborted": 3}\n'])
def test_a_trace_that_does_not_say_so_is_known_without_reading_its_rows(trace, content):
    assert not Workload(replay=Replay(trace(content), columns=OWN if content in (CSV, JSON) else {})).may_abort


def test_a_list_of_objects_is_recognised(trace):
    path = trace('[\n {"arrival": 1, "prompt": 2, "output": 3},\n {"arrival": 2, "prompt": 2, "output": 3}\n]\n')
    assert [request.arrival for request in requests(path)] == [0, 1]


def test_a_dot_reaches_keys_of_inner_objects(trace):
    path = trace('{"time": {"sent": 3}, "usage": {"in": 5, "out": 6}}\n')
    (request,) = requests(path, columns={"arrival": "time.sent", "prompt": "usage.in", "output": "usage.out"})
    assert (request.prompt, request.output) == (5, 6)


def test_fields_with_their_own_name_need_no_column(trace):
    assert len(requests(trace("ts,prompt,output\n0,1,2\n"), columns={"arrival": "ts"})) == 1


def test_one_column_may_be_two_fields(trace):
    path = trace("arrival,prompt,output,user\n0,1,2,ann\n")
    (request,) = requests(path, columns={"tenant": "user", "session": "user"})
    assert (request.tenant, request.session) == ("ann", "ann")


@pytest.mark.parametrize(("first", "second", "gap"), [
    ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690", 4.314579),
    ("2024-05-11T23:59:59.5Z", "2024-05-12T02:00:00+02:00", 0.5),
    ("20231116T181546", "20231116T181600", 14),
])
def test_dates_are_read_as_seconds(trace, first, second, gap):
    path = trace(f"ts,prompt,output\n{first},1,2\n{second},3,4\n")
    assert [request.arrival for request in requests(path, columns={"arrival": "ts"})] == [0, gap]
    assert Replay(path, columns={"arrival": "ts"}).clock() == "dates"


def test_whole_numbers_that_look_like_dates_are_numbers(trace):
    path = trace("arrival,prompt,output\n20231116,1,2\n20231117,1,2\n")
    assert [request.arrival for request in requests(path)] == [0, 1]


def test_without_arrivals_a_rate_is_needed(trace):
    path, columns = trace("in,out\n" + "10,2\n" * 400), {"prompt": "in", "output": "out"}
    with pytest.raises(DataError, match=r"trace:3: has no arrival time; set a rate .*--request-rate.*--columns"):
        requests(path, columns=columns)
    ledger = Ledger()
    replayed = list(Replay(path, columns=columns, rate=8).requests(0, ledger))
    assert replayed[-1].arrival == pytest.approx(399 / 8, rel=0.15)
    assert "the trace has no arrival times; Poisson arrivals at 8/s" in ledger.remarks()
    assert list(Replay(path, columns=columns, rate=8).requests(1)) != replayed, "another seed draws others"
    assert Replay(path, columns=columns).clock() == ""


def test_the_last_partial_block_may_have_an_id_or_none(trace):
    path = trace("arrival,prompt,output,hash_ids\n0,70,1,a|b\n1,70,1,a|b|c\n")
    assert [len(row.chunks) for row in read(path, chunk_tokens=32)] == [2, 3]
    with pytest.raises(DataError, match="trace:2: has 2 block ids, but 70 prompt tokens fill 5 blocks of 16"):
        list(read(path))


def test_columns_and_unit_are_keys_of_a_scenario(trace):
    table = {"path": str(trace(CSV)), "columns": OWN, "time_unit": "ms", "empty": "skip"}
    replay = structure(Replay, table)
    assert [request.arrival for request in replay.requests(0)] == [0, 2]
    assert structure(Replay, plain(replay)) == replay


@pytest.mark.parametrize(("table", "message"), [
    ({"columns": {"arival": "ts"}}, "columns: there is no field 'arival'; did you mean 'arrival'? expected arrival,"),
    ({"columns": {"arrival": 3}}, "columns.arrival: expected a text, not 3"),
    ({"columns": ["ts"]}, "columns"),
    ({"time_unit": "sec"}, "'time_unit' must be in ('ns', 'us'"),
    ({"empty": "drop"}, "'empty' must be in ('skip', 'error')"),
    ({"format": 3}, "format: expected a name, or a table with a name and its options, not 3"),
])
def test_a_faulty_setting_is_an_error_by_key(table, message):
    with pytest.raises(ConfigError) as caught:
        structure(Replay, {"path": "t.csv", **table})
    assert message in str(caught.value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"columns": OWN, "format": "azure"}, "columns: format azure has its own columns; leave out one of the two"),
    ({"format": "azure", "time_unit": "s"}, "time_unit: format azure has dates, which have no unit"),
    ({"format": "sharegpt", "time_unit": "s"}, "time_unit: format sharegpt has no times, which have no unit"),
    ({"format": Choice("vidur", {"turns": 1})}, "format vidur: takes no options, and was given turns"),
    ({"format": Choice("sharegpt", {"turn": 1})}, "format sharegpt: turn: unknown key; did you mean 'turns'?"),
    ({"format": Choice("sharegpt", {"characters_per_token": 0})}, "characters_per_token' must be > 0: 0"),
])
def test_conflicting_settings_are_an_error(trace, settings, message):
    with pytest.raises(ConfigError) as caught:
        requests(trace(CSV), **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(("content", "columns", "message"), [
    (CSV, {"arrival": "time"}, "trace:1: has no column 'time', only id, ts, input_length, output_length; is it"),
    (CSV.replace(",", "|"), OWN, "trace:1: has no column 'ts', only id|ts|input_length|output_length; columns are"
                                 " separated by commas, semicolons or tabs"),
    (CSV, {**OWN, "tenant": "user"}, "trace:1: has no column 'user', only id"),
    (JSON, {"arrival": "time"}, "trace:1: has no 'time', only ts, input_length, output_length; is it"),
    (JSON, {**OWN, "tenant": "user"}, "trace:1: has no 'user', only ts"),
    ('{"a\\nb": 1}\n', OWN, "trace:1: has no 'ts', only a\\nb; is it of another format?"),
    (JSON + '{"ts": 9, "output_length": 3}\n', OWN, "trace:3: input_length is ''; expected a whole number"),
    (JSON + '{"input_length": 9, "output_length": 3}\n', OWN, "trace:3: ts is ''; expected a number"),
    (CSV + "9,soon,1,2\n", OWN, "trace:4: ts is 'soon'; expected a number"),
    (CSV + "9,2024-05-12,1,2\n", OWN, "trace:4: ts is '2024-05-12'; expected a number"),
    (CSV + "9,-4,1,2\n", OWN, "trace:4: ts is '-4'; expected no negative time"),
    ("ts,prompt,output\n2024-05-12,1,2\n7,1,2\n", {"arrival": "ts"}, "trace:3: ts is '7'; expected a time such as"),
    ("ts,prompt,output\n05/12/24 10:00,1,2\n", {"arrival": "ts"}, "trace:2: ts is '05/12/24 10:00'; expected a number"),
    ('{"ts": {"a": 1}, "prompt": 1, "output": 1}\n', {"arrival": "ts"}, "trace:1: ts is {'a': 1}; expected a number"),
    ('{"arrival": 1, "prompt": 1, "output": 1, "who": [1]}\n', {"tenant": "who"}, "trace:1: who is [1]; expected"),
    ('{"arrival": 1, "prompt": 1, "output": 1, "who": false}\n', {"priority": "who"}, "trace:1: who is False; exp"),
    ('{"arrival": 1, "prompt": 1, "output": 1, "who": {}}\n', {"hash_ids": "who"}, "trace:1: the block ids are not a"),
    ("arrival,prompt,output,ids\n0,1,2,[1\n", {"hash_ids": "ids"}, "trace:2: ids is '[1'; expected block ids such as"),
])
def test_a_faulty_file_is_an_error_with_file_line_and_remedy(trace, content, columns, message):
    with pytest.raises(DataError) as caught:
        requests(trace(content), columns=columns)
    assert message in str(caught.value)


def test_dates_have_no_unit(trace):
    with pytest.raises(DataError, match="trace:2: has dates, which have no unit of time; leave out time_unit"):
        requests(trace("arrival,prompt,output\n2024-05-12,1,2\n"), time_unit="s")


def test_the_unit_replaces_that_of_a_known_format(trace):
    path = trace('{"timestamp": 1, "input_length": 5, "output_length": 1}\n'
                 '{"session_id": "a", "timestamp": 3, "input_length": 5, "output_length": 1}\n'
                 '{"session_id": "a", "delay": 4, "input_length": 5, "output_length": 1}\n')
    assert [(row.arrival, row.delay) for row in read(path, time_unit="s")] == [(0, 0), (2, 0), (2, 4)]
    assert Replay(path).clock() == "ms" and Replay(path, time_unit="s").clock() == "s"


@pytest.mark.parametrize(("name", "unit"), [
    ("req_start_ms", "ms"), ("Start (ms)", "ms"), ("t[us]", "us"), ("startMs", "ms"), ("timestampMillis", "ms"),
    ("time_milliseconds", "ms"), ("ts_ns", "ns"), ("sent.us", "us"), ("arrival_s", "s"), ("seconds", "s"),
    ("start-sec", "s"), ("gap_minutes", "min"), ("age (hours)", "h"), ("TIME_MS", "ms"), ("created_µs", "us"),
    ("ts", ""), ("s", ""), ("arrivals", ""), ("items", ""), ("bonus", ""), ("requests", ""), ("latency_min", ""),
    ("time", ""), ("rooms", ""), ("status", "")])
def test_a_name_ends_with_its_unit(name, unit):
    assert unit_of(name) == unit


@pytest.mark.parametrize("unit", [None, "ms"])
def test_a_unit_in_the_name_of_a_column_counts(trace, unit):
    path = trace("req_start_ms,in,out,chat,wait_us\n1500,10,2,a,\n1500,20,3,a,250000\n3500,9,9,,\n")
    columns = {"arrival": "req_start_ms", "prompt": "in", "output": "out", "session": "chat"}
    assert [request.arrival for request in requests(path, columns=columns, time_unit=unit)] == [0, 0, 2]
    assert Replay(path, columns=columns).clock() == "ms"
    if unit is None:
        assert requests(path, columns={**columns, "delay": "wait_us"})[1].delay == 0.25


@pytest.mark.parametrize("columns", [{"arrival": "start_ms"}, {"arrival": "ts", "delay": "wait_ms"}])
def test_a_unit_that_contradicts_the_name_is_refused(trace, columns):
    path = trace("start_ms,ts,in,out,wait_ms\n1500,0,10,2,\n")
    with pytest.raises(DataError, match=r"column '\w+_ms' is in ms by its name, and time_unit \(--time-unit\) says us"):
        requests(path, columns={"prompt": "in", "output": "out", **columns}, time_unit="us")


def test_a_name_without_a_unit_is_said_to_be_taken_in_seconds(trace):
    def remarks(content=CSV, **settings):
        ledger = Ledger()
        assert list(Replay(trace(content), **settings).requests(0, ledger))
        return [remark for remark in ledger.remarks() if "does not say its unit" in remark]

    assert "column 'ts'" in remarks(columns=OWN)[0]
    assert not remarks(columns=OWN, time_unit="s")
    assert not remarks(CSV.replace("ts", "ts_s"), columns={**OWN, "arrival": "ts_s"})
    assert not remarks("arrival,prompt,output\n0,1,1\n")
    dated = CSV.replace("1500", "2024-05-01 10:00:00").replace("3500", "2024-05-01 10:00:02")
    assert not remarks(dated, columns=OWN)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_columns_may_have_semicolons_or_tabs_between_them(trace, mark):
    path = trace("arrival,prompt,output\n0,5,5\n1.5,5,5\n".replace(",", mark))
    assert [request.arrival for request in requests(path)] == [0, 1.5]
    decimal = trace(f"arrival{mark}prompt{mark}output\n0,25{mark}5{mark}5\n12345,678{mark}5{mark}5\n")
    assert requests(decimal)[1].arrival == pytest.approx(12345.428)


def test_a_comma_that_may_part_thousands_is_refused(trace):
    with pytest.raises(DataError, match=r"trace:3: arrival is '1,234', which may be 1\.234 or 1234"):
        requests(trace("arrival;prompt;output\n0,5;5;5\n1,234;5;5\n"))


@pytest.mark.parametrize("key", ["data", "requests", "rows"])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_that_holds_one_list_is_that_list(trace, key, indent):
    rows = [{"arrival": number / 2, "prompt": 5, "output": 6} for number in range(3)]
    path = trace(json.dumps({key: rows}, indent=indent))
    assert [request.arrival for request in requests(path)] == [0, 0.5, 1]
    assert [row.prompt for row in read(path)] == [5, 5, 5]


@pytest.mark.parametrize("content", ['{"data": [\n {"arrival": 1, "prompt": 2, "output": 3},\n',
                                     '{"data": [\n {"arrival": 1, "prompt": 2, "output": 3}],\n "total": 1}\n'])
def test_a_list_that_is_cut_short_or_not_alone_is_refused(trace, content):
    with pytest.raises(DataError, match="is the file cut short"):
        requests(trace(content))

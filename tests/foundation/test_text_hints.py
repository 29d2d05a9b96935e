"""Hints for texts that cannot be read: what is probably wrong, and what to write."""

import tomllib

import pytest

from ksim.foundation.files import broken_line, not_utf8, number_hint


@pytest.mark.parametrize(("line", "hint"), [
    ("model = \u201cllama\u201d", 'write " in place of \u201c'),
    ("model = \u2018llama\u2019", "write ' in place of \u2018"),
    ("rate = \u22121.5", "write a plain - as the minus"), ("rate = 1,5", "write a decimal point"),
    ("model: llama", "reads like YAML"), ("- model", "reads like YAML"), ("model = llama", "put a text in quotes"),
    ("model = /home/me/config.json", "put a text in quotes"),
    ("ttft = 200 ms", "put a quantity with its unit in quotes"),
    ("share = 5%", "put a quantity with its unit in quotes"), ("on = True", "write true or false"),
    ("on = None", "write true or false"),
    ("[serve", "close the bracket or quote"), ('a = "x', "close the bracket or quote"),
    ("a = 1\na = 2", "each key once"), ("[a]\n[a]", "into one table"), ("a\u00a0= 1", "no plain space"),
    ('{"model": "llama"}', "this is JSON"),
])
def test_a_broken_line_is_shown_with_what_to_write(line, hint):
    with pytest.raises(tomllib.TOMLDecodeError) as problem:
        tomllib.loads(line)
    said = broken_line(line, str(problem.value))
    assert hint in said and said.startswith(f": {line.splitlines()[-1].strip()}")


def test_long_lines_are_cut_and_unknown_places_left_out():
    assert len(broken_line("x" * 999 + " = ", "(at line 1, column 999)")) < 150
    assert broken_line("a", "(at line 9, column 1)") == broken_line("", "(at end of document)") == ""


@pytest.mark.parametrize(("content", "said"), [
    (b"\xff\xfea\0", "in UTF-16; save it as UTF-8"),
    (b"PAR1\xff", "Parquet"), (b"\x1f\x8b\xff", "gzipped"), (b"\xff", "UTF-8")])
def test_bytes_that_are_no_text_say_what_they_are(content, said):
    assert said in not_utf8(content)


def test_numbers_as_other_countries_write_them():
    assert number_hint("0,5 kW") == "; write a decimal point: '0.5 kW'"
    assert "plain -" in number_hint("\u22125 W") and number_hint("many") == ""

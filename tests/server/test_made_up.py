"""Texts without a tokenizer: counted by the same rule on their way in and out."""

from hypothesis import given
from hypothesis import strategies as st

from ksim.server.openai.fields import CompletionFields
from ksim.server.openai.prompts import CHUNK, block_names
from ksim.server.openai.reply import Author, stopped_by
from ksim.server.text import COMMON, Chat, MadeUpTokenizer
from tests.properties import examples

SIZE = 128_256
TOKENIZER = MadeUpTokenizer(SIZE)
IDS = st.lists(st.integers(0, SIZE - 4), max_size=40)


@examples(200)
@given(IDS)
def test_what_is_decoded_is_encoded_to_the_same_tokens(ids):
    assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids
    assert TOKENIZER.encode("".join(map(TOKENIZER.piece, ids))) == ids


@examples(200)
@given(st.text(max_size=80))
def test_every_text_has_tokens_and_no_character_is_lost(text):
    ids = TOKENIZER.encode(text)
    assert all(0 <= number < SIZE - 3 for number in ids)
    assert bool(ids) == bool(text)
    assert len(ids) <= len(text) + 1
    assert ids == MadeUpTokenizer(SIZE).encode(text)


def test_english_has_about_four_tokens_for_three_words():
    text = ("A simulator predicts latency, throughput and energy of inference servers before anybody buys the machines"
            " that they would need, and explains where the time of each request went.")
    assert 1.2 < len(TOKENIZER.encode(text)) / len(text.split()) < 1.7


def test_common_words_are_one_token_each():
    assert len(TOKENIZER.encode(" ".join(COMMON))) == len(COMMON) == len({*COMMON})


@examples(60)
@given(st.integers(0, 2**40), st.integers(1, 600), st.booleans())
def test_an_answer_has_as_many_tokens_as_it_says(seed, length, leads):
    answer = Author(TOKENIZER, seed).answer(CompletionFields(), (0, 0), length, length, leads)
    assert TOKENIZER.encode(answer.text) == list(answer.ids)
    assert len(answer.ids) == length
    assert answer.text.startswith(" ") == leads


@examples(60)
@given(st.data())
def test_a_stop_ends_an_answer_where_it_is_complete(data):
    plain = Author(TOKENIZER, 0).answer(CompletionFields(), (data.draw(st.integers(0, 50)), 0), 40, 40, True)
    start = data.draw(st.integers(0, len(plain.text) - 1))
    stop = plain.text[start:start + data.draw(st.integers(1, 12))]
    least = data.draw(st.integers(0, 39))
    asked = CompletionFields(stop=stop, min_tokens=least)
    stopped = stopped_by(plain, asked)
    assert plain.text.startswith(stopped.text)
    if stopped.reason == "stop":
        assert plain.text.startswith(stopped.text + stop)
        whole = "".join(plain.pieces[:len(stopped.ids)])
        assert whole.startswith(stopped.text + stop)
        assert len("".join(plain.pieces[:len(stopped.ids) - 1])) < len(stopped.text + stop)
        assert len(stopped.text + stop) > len("".join(plain.pieces[:least]))
    assert len(stopped.pieces) == len(stopped.ids)


@examples(60)
@given(IDS, IDS, IDS)
def test_blocks_have_equal_names_where_they_have_equal_tokens(shared, one, other):
    first, second = block_names(shared + one, [], None, None), block_names(shared, other, None, None)
    whole = len(shared) // CHUNK
    assert first[:whole] == second[:whole]
    assert len(first) == -(-len(shared + one) // CHUNK)
    assert (first == second) == (shared + one == shared + other)
    salted = block_names(shared, other, "salt", None)
    assert salted[1:] == second[1:] and (not second or salted[0] != second[0])


def test_whoever_wants_to_know_is_told_the_tokens_of_each_block():
    told = {}
    made = block_names([*range(20)], [50, 51], None, lambda name, ids: told.update({name: list(ids)}))
    assert [told[name] for name in made] == [[*range(16)], [16, 17, 18, 19, 50, 51]]


def test_a_chat_that_goes_on_begins_with_the_one_before():
    messages = [("user", "Hello"), ("assistant", "Well then"), ("user", "Why?")]
    one = TOKENIZER.chat(Chat(messages[:1]))
    three = TOKENIZER.chat(Chat(messages))
    assert three[:len(one)] == one
    assert TOKENIZER.chat(Chat(messages[:2], answered=False, continued=True)) == three[:len(one) + 2]

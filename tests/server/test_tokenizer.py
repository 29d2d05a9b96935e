"""With a tokenizer of Hugging Face's, texts are counted and made up in its tokens."""

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError
from ksim.server import text
from ksim.server.errors import ApiError
from ksim.server.openai.fields import CompletionFields
from ksim.server.openai.reply import Author
from ksim.server.text import COMMON, Chat, ChatTemplate, HuggingFaceTokenizer
from tests.properties import examples
from tests.server.talk import HELLO, talk

tokenizers = pytest.importorskip("tokenizers")
LLAMA = ("{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>\n{% endif %}")


def byte_level():
    """As of Llama 3, Qwen and GPT: spaces belong to the words after them."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<s>", "<|end|>"])
    made.train_from_iterator([" ".join(COMMON[:120]), *COMMON[:100]] * 3, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def sentence_piece():
    """As of Llama 2 and Mistral: a text begins with a space, which is not shown."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator([" ".join(COMMON[:120])] * 3, trainer)
    return made


@cache
def of(kind):
    return HuggingFaceTokenizer(kind(), ChatTemplate())


each_kind = pytest.mark.parametrize("kind", [byte_level, sentence_piece])


@each_kind
@examples(20)
@given(st.integers(0, 1000), st.integers(1, 80), st.booleans())
def test_an_answer_is_encoded_to_the_tokens_that_it_has(kind, seed, length, leads):
    tokenizer = of(kind)
    answer = Author(tokenizer, seed).answer(CompletionFields(), (0, 0), length, length, leads)
    assert tokenizer.encode(answer.text, False) == list(answer.ids)
    assert len(answer.ids) == length


@each_kind
def test_words_are_known_by_their_tokens(kind):
    tokenizer = of(kind)
    assert len(tokenizer.words) > 20
    assert [tokenizer.piece(number) for number in tokenizer.next_ids] == [f" {word}" for word in tokenizer.words]
    assert all(number < tokenizer.vocabulary for number in tokenizer.first_ids)


@pytest.fixture
def folder(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "chat_template": LLAMA}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_server_counts_by_it(folder):
    tokenizer = HuggingFaceTokenizer.read(folder)
    text = "the word of a question"
    ids = tokenizer.encode(text)
    tokenized, detokenized, completion, chat = talk(
        ("/tokenize", {"prompt": text}), ("/detokenize", {"tokens": ids[1:]}),
        ("/v1/completions", {"prompt": text, "max_tokens": 9, "ignore_eos": True}),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 9, "ignore_eos": True}), tokenizer=tokenizer)
    assert tokenized.json()["tokens"] == ids and ids[0] == 0
    assert detokenized.json()["prompt"] == text
    assert completion.json()["usage"]["prompt_tokens"] == len(ids)
    assert len(tokenizer.encode(completion.json()["choices"][0]["text"], False)) == 9
    assert chat.json()["usage"]["prompt_tokens"] == len(
        tokenizer.encode("<s><|user|>\nHello<|end|><|assistant|>\n", False))
    assert len(tokenizer.encode(chat.json()["choices"][0]["message"]["content"], False)) == 9


def test_a_template_may_lie_beside_the_tokenizer_or_be_one_of_several(folder):
    chat = Chat([("user", "Hi")])
    (folder / "chat_template.jinja").write_text("of its own: {{ messages[0].content }}")
    assert ChatTemplate.beside(folder / "tokenizer.json").text(chat) == "of its own: Hi"
    (folder / "chat_template.jinja").unlink()
    config = {"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.beside(folder / "tokenizer.json").text(chat) == "yes"
    (folder / "tokenizer_config.json").unlink()
    assert ChatTemplate.beside(folder / "tokenizer.json").text(chat) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_gets_tools_and_options_and_may_refuse():
    chat = Chat([("user", "Hi"), ("assistant", "Well")], tools=[{"a": 1}], options={"thinks": True}, answered=False,
                continued=True)
    assert ChatTemplate("{{ tools | tojson }} {{ thinks }} {{ messages[-1].content }}</s>").text(chat) == (
        '[{"a": 1}] True Well')
    with pytest.raises(ApiError, match="no roles"):
        ChatTemplate("{{ raise_exception('no roles') }}").text(chat)
    with pytest.raises(ApiError, match="undefined"):
        ChatTemplate("{{ nothing.there }}").text(chat)


def test_a_template_reaches_nothing_outside_it():
    with pytest.raises(ApiError):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").text(Chat([("user", "Hi")]))


@pytest.mark.parametrize("template", [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(9999) %}{% for b in range(9999) if b < 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set n = namespace(x='long') %}{% for a in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='long') %}{% for a in range(64) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='long') %}{% for a in range(64) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "{% set n = namespace(x=9) %}{% for a in range(64) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% for a in range(99999) %}" + 5000 * "long" + "{% endfor %}",
    "{{ 'x' * 10 ** 10 }}", "{{ [1] * 10 ** 10 }}", "{{ 2 ** 99999 }}", "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (10 ** 9, 1) }}",
    "{{ '{:999999999}'.format(1) }}", "{{ '{:{}}'.format(1, 10 ** 9) }}", "{{ 'x'.ljust(10 ** 9) }}",
    "{{ 'x' | center(10 ** 9) }}", "{{ " + 5000 * "(" + "1" + 5000 * ")" + " }}", (2**20 + 1) * "x"])
def test_no_template_takes_all_time_or_memory(template, monkeypatch):
    monkeypatch.setattr(text, "_MOST_ROUNDS", 20_000)
    monkeypatch.setattr(text, "_MOST_TEXT", 2**22)
    with pytest.raises((ApiError, ConfigError), match="chat template|recursion"):
        ChatTemplate(template).text(Chat([("user", "Hi")]))


def test_templates_count_join_and_format_as_usual():
    template = ("{% set n = namespace(x='') %}{% for m in messages if m.role %}{{ loop.index }}"
                "{% set n.x = n.x ~ m.role + '!' %}{% endfor %}{{ n.x * 2 }} "
                "{{ 7 % 4 }} {{ '%s-%02d' % ('a', 3) }} {{ '{}'.format(5) }} {{ [1] + [2] }}")
    made = ChatTemplate(template)
    for _ in range(2):
        assert made.text(Chat([("user", "Hi"), ("tool", "Ho")])) == "12user!tool!user!tool! 3 a-03 5 [1, 2]"


@pytest.mark.parametrize(("text", "says"), [
    (None, "is not there"), ("", "is not a tokenizer.json"), ("{}", "is not a tokenizer.json"),
    ("[1]", "is not a tokenizer.json"), ("\0\1", "is not a tokenizer.json")])
def test_what_is_no_tokenizer_is_refused(tmp_path, text, says):
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        HuggingFaceTokenizer.read(tmp_path)


def test_templates_that_cannot_be_read_are_refused(folder):
    for broken, says in (("{", "is not JSON"),
                         (json.dumps({"chat_template": "{% if"}), "chat template cannot be read")):
        (folder / "tokenizer_config.json").write_text(broken)
        with pytest.raises(ConfigError, match=says):
            HuggingFaceTokenizer.read(folder)


def test_a_tokenizer_without_words_is_refused():
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ConfigError, match="no common English words"):
        HuggingFaceTokenizer(made, ChatTemplate())

"""Tokenizers and chat templates.

`MadeUpTokenizer` needs no files: every id is a word, and every piece of a text has an id.  `HuggingFaceTokenizer` reads
a tokenizer.json, and `ChatTemplate` the Jinja template beside it, in a sandbox with limits.
"""

import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from attrs import define, field, frozen

from ksim.flow.request import Image
from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.foundation.files import LONGEST, regular_file
from ksim.server.errors import ApiError

__all__ = ["Chat", "Tokenizer", "ChatTemplate", "COMMON", "MadeUpTokenizer", "HuggingFaceTokenizer"]


@frozen
class Chat:
    """The messages of a chat, as pairs of a role and a text.

    Each image comes with the number of its message.  `tools` are JSON schemas.  The prompt ends with the beginning of
    an answer if it is to be `answered`, or with the last message if that is to be `continued`.  `options` go to the
    chat template (`chat_template_kwargs`).
    """

    messages: Sequence[tuple[str, str]]
    images: Sequence[tuple[int, Image]] = ()
    tools: Sequence[Any] = ()
    answered: bool = True
    continued: bool = False
    options: dict[str, Any] | None = None


class Tokenizer(Protocol):
    """Turns texts into token ids and back, and has the words of which answers are made."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        ...

    @property
    def longest_token(self) -> int:
        """Characters of the longest token."""
        ...

    @property
    def words(self) -> Sequence[str]:
        """Words that are one token each, in any order."""
        ...

    @property
    def first_ids(self) -> Sequence[int]:
        """The ids of `words` at the beginning of a text."""
        ...

    @property
    def next_ids(self) -> Sequence[int]:
        """The ids of `words` after a space."""
        ...

    @property
    def leading_space(self) -> str:
        """A space, if a text may begin with one that belongs to the token of its first word; else nothing."""
        ...

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of *text*, with the *special* ones around it that the tokenizer adds."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of *ids*."""
        ...

    def piece(self, number: int) -> str:
        """What the token with this id adds to a text."""
        ...

    def chat(self, chat: Chat) -> list[int]:
        """The ids of the prompt that *chat* makes."""
        ...


#: For tokenizers without a chat template: ChatML.
_CHATML = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
           "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


#: The most characters of a template, and of what it writes for a chat, in loops and macros that go round so often.
_LONGEST, _MOST_TEXT, _MOST_ROUNDS = 2**20, 2**27, 10**6
#: Ways to pad a text to any width, and what pads in a format: many digits, or a width from elsewhere.
_PADDING, _WIDE = {"center", "expandtabs", "ljust", "rjust", "zfill"}, re.compile(r"\d{4}|\*|\{[^}]*\{")
#: The most bits of a product.
_MOST_BITS = 4096


class _Refused(Exception):
    """A template has called raise_exception, or does more than any chat needs."""


@frozen
class ChatTemplate:
    """A chat template, and the special `tokens` that it may use, such as `bos_token`."""

    source: str = _CHATML
    tokens: dict[str, str] = field(factory=dict)
    _compiled: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_compiled", _compiled(self.source))

    @classmethod
    def beside(cls, file: Path) -> "ChatTemplate":
        """The template in the folder of the tokenizer.json called *file*; ChatML where there is none."""
        config, jinja = _table(file.with_name("tokenizer_config.json")), file.with_name("chat_template.jinja")
        written = (regular_file(jinja, LONGEST).read_text(encoding="utf-8") if jinja.is_file() else
                   config.get("chat_template"))
        if isinstance(written, list):  # several, by name
            named = {part.get("name"): part.get("template") for part in written if isinstance(part, dict)}
            written = named.get("default")
        tokens = {key: value.get("content") if isinstance(value, dict) else value
                  for key, value in config.items() if key.endswith("_token")}
        return cls(written if isinstance(written, str) else _CHATML,
                   {key: value for key, value in tokens.items() if isinstance(value, str)})

    def text(self, chat: Chat) -> str:
        """*chat* as one text; raises ApiError if the template refuses it."""
        messages = [{"role": role, "content": content} for role, content in chat.messages]
        last = chat.messages[-1][1] if chat.continued and chat.messages else None
        self._compiled.environment.start()
        try:
            written = str(self._compiled.render({
                "messages": messages, "tools": list(chat.tools) or None, "add_generation_prompt": chat.answered,
                **self.tokens, **(chat.options or {})}))
        except Exception as error:  # a template is a program, and may fail in any way
            raise ApiError(str(error) or type(error).__name__, 400, "BadRequestError") from None
        return written if last is None or last.strip() not in written else (
            written[:written.rindex(last.strip()) + len(last.strip())])


def _table(path: Path) -> dict[str, Any]:
    """The content of a tokenizer_config.json, or nothing if the file is missing."""
    if not path.is_file():
        return {}
    try:
        table = json.loads(regular_file(path, LONGEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError("--tokenizer", f"{path} is not JSON: {error}") from None
    return table if isinstance(table, dict) else {}


def _compiled(source: str) -> Any:
    try:
        from jinja2 import TemplateError
    except ImportError:
        raise MissingExtra("tokenizer", "a chat template") from None
    if len(source) > _LONGEST:
        raise ConfigError("--tokenizer", f"its chat template has {len(source):,} characters; {_LONGEST:,} are the most")
    environment = _sandbox()
    try:
        return environment.from_string(_counted(environment.parse(source), environment))
    except (TemplateError, RecursionError, _Refused) as error:
        raise ConfigError("--tokenizer", f"its chat template cannot be read: {error}") from None


def _sandbox() -> Any:
    """Where templates run: they reach nothing but the chat, and end within the limits of `_Limits`."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = type("Sandbox", (_Limits, ImmutableSandboxedEnvironment), {})(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.finalize = made.written
    made.globals["raise_exception"] = _refuse
    made.filters["tojson"] = _json
    for filler in ("center", "format", "slice"):
        del made.filters[filler]
    del made.globals["lipsum"]
    return made


class _Limits:
    """What a sandbox of Jinja does more: it counts rounds and characters, and refuses what has too many."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    rounds = text = 0

    def start(self) -> None:
        """Count from nothing."""
        self.rounds = self.text = 0

    def round(self, text: int) -> bool:
        """Count a round that writes *text* characters."""
        self.rounds += 1
        self.text += text
        if self.rounds > _MOST_ROUNDS or self.text > _MOST_TEXT:
            raise _Refused(f"the chat template goes round its loops more than {_MOST_ROUNDS:,} times, or makes more"
                           f" than {_MOST_TEXT:,} characters")
        return True

    def written(self, value: Any) -> str:
        """*value* as a text that is counted."""
        self.round(len(text := str(value)))
        return text

    def joined(self, *parts: Any) -> str:
        """What ``~`` makes of *parts*."""
        return "".join([self.written(part) for part in parts])

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Do as Jinja, but for what pads."""
        if isinstance(obj, str) and (attribute in _PADDING or (attribute.startswith("format") and _WIDE.search(obj))):
            raise _Refused(f"the chat template pads a text with {attribute}, which is not allowed here")
        return super().getattr(obj, attribute)  # type: ignore[misc]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Do as Jinja, after a look at how large the result becomes."""
        self.round(_size(operator, left, right))
        return super().call_binop(context, operator, left, right)  # type: ignore[misc]


def _size(operator: str, left: Any, right: Any) -> int:
    """How much a result may have: characters or members, and of a whole number bits."""
    if operator == "%":
        return _MOST_TEXT + 1 if isinstance(left, str) and _WIDE.search(left) else 0
    one, other = (each.bit_length() if isinstance(each, int) else len(each) if hasattr(each, "__len__") else 0
                  for each in (left, right))
    if operator == "+":
        return one + other
    whole = isinstance(left, int), isinstance(right, int)
    if all(whole):
        return _MOST_TEXT + 1 if (one * abs(right) if operator == "**" else one + other) > _MOST_BITS else 0
    return other * max(left, 0) if whole[0] else one * max(right, 0) if whole[1] else 0


def _counted(tree: Any, environment: Any) -> Any:
    """*tree* with each round of its loops and macros counted, and the text that stands in it; and what ``~`` joins."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def call(name: str, arguments: list[Any], line: int) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None, lineno=line)

    def joining(self: Any, node: Any) -> Any:
        self.generic_visit(node)
        return call("joined", node.nodes, node.lineno)

    for each in [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]:
        inner = sum(len(part.data) for part in each.find_all(nodes.TemplateData))
        once = call("round", [nodes.Const(inner)], each.lineno)
        each.body.insert(0, nodes.ExprStmt(once, lineno=each.lineno))
        if getattr(each, "test", None) is not None:
            each.test = nodes.And(once, each.test, lineno=each.lineno)
    transformer = type("Joining", (NodeTransformer,), {"visit_Concat": joining})
    return transformer().visit(tree).set_environment(environment)


def _refuse(message: str) -> None:
    raise _Refused(message)


def _json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


#: A token is up to six letters with the space before them, up to three digits, up to three marks with the space before
#: them, a character of CJK, or up to sixteen of white space.
_PIECES = re.compile(r"[\u2e80-\uffef]| ?[^\W\d_]{1,6}|\d{1,3}| ?[^\s\w]{1,3}|_|\s{1,16}(?!\S)|\s")
_WORDS = (
    "the of and to in is that for it as with was on are by be this at from have or an not but they which you all can"
    " more one time when about other some its into than only new also two may like then first any work use how our well"
    " way even want give day most us good year see know take them could look come over think back after state high low"
    " load step batch queue token model page cache block rate cost test plan path case part side line point place group"
    " wait fill serve send read write hold free move start end ask say show find keep turn reach count share grow slow"
    " fast wide deep long short large small early late often never once twice whole half next last same each such much"
    " many few both own just still yet here there where while since until under above below near far again left right"
    " open close clear plain simple solid quick calm warm cold light dark green blue red white black brown grey water"
    " stone river tree field house road town table chair paper book story letter word name number question answer"
)
#: Words that are one token each here, and in most tokenizers.
COMMON = tuple(word for word in dict.fromkeys(_WORDS.split()) if len(word) < 6)
_CONSONANTS, _VOWELS = "bdfghjklmnprstvwz", "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
_THREE_SYLLABLES = re.compile(rf" (?:[{_CONSONANTS}][{_VOWELS}]){{3}}")
#: The last ids are marks in chats; the smallest vocabulary; pieces whose ids are cached.
_MARKS, _MIN_VOCABULARY, _MAX_KNOWN = 3, 256, 200_000


def _syllables(number: int) -> str:
    """A word of three syllables for each *number*."""
    base = len(_SYLLABLES)
    return _SYLLABLES[number // base**2 % base] + _SYLLABLES[number // base % base] + _SYLLABLES[number % base]


def _at_least(size: int) -> int:
    return max(size, _MIN_VOCABULARY)


@define
class MadeUpTokenizer:
    """Cuts text into pieces, about four for three English words, and gives each an id below `vocabulary`.

    What `decode` returns is encoded to the same ids.  The first ids are common words, the others words of three
    syllables; a piece that is none of them has its checksum as an id.
    """

    vocabulary: int = field(converter=_at_least)
    leading_space: str = " "
    longest_token: int = 16
    words: Sequence[str] = field(init=False)
    _known: dict[str, int] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.words = COMMON[:self.vocabulary - _MARKS]
        self._known.update({f" {word}": number for number, word in enumerate(self.words)})

    @property
    def first_ids(self) -> Sequence[int]:
        return range(len(self.words))

    @property
    def next_ids(self) -> Sequence[int]:
        return range(len(self.words))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of *text*; this tokenizer has no *special* ones."""
        return [*map(self._id, _PIECES.findall(f" {text}" if text[:1].isalpha() else text))]

    def decode(self, ids: Iterable[int]) -> str:
        """A text with these *ids*, without the marks of chats."""
        return "".join(map(self.piece, ids))[1:]

    def piece(self, number: int) -> str:
        if number >= self.vocabulary - _MARKS:
            return ""
        return f" {self.words[number] if number < len(self.words) else _syllables(number - len(self.words))}"

    def chat(self, chat: Chat) -> list[int]:
        """The ids of the tools, and for each message those of a mark, its role, its content and another mark."""
        begin, end, tools = range(self.vocabulary - 3, self.vocabulary)
        ids = [tools, *self.encode(json.dumps(chat.tools))] if chat.tools else []
        for role, content in chat.messages:
            ids += [begin, self._checksum(role), *self.encode(content), end]
        if chat.continued and chat.messages:
            del ids[-1]
        return [*ids, begin, self._checksum("assistant")] if chat.answered else ids

    def _id(self, piece: str) -> int:
        number = self._known.get(piece)
        if number is None:
            number = self._number(piece)
            if len(self._known) < _MAX_KNOWN:
                self._known[piece] = number
        return number

    def _number(self, piece: str) -> int:
        """The id of a piece that has not been seen before."""
        if _THREE_SYLLABLES.fullmatch(piece):
            parts = [_SYLLABLES.index(piece[at:at + 2]) for at in (1, 3, 5)]
            number = len(self.words) + (parts[0] * len(_SYLLABLES) + parts[1]) * len(_SYLLABLES) + parts[2]
            if number < self.vocabulary - _MARKS:
                return number
        return self._checksum(piece)

    def _checksum(self, piece: str) -> int:
        return crc32(piece.encode("utf-8", "replace")) % (self.vocabulary - _MARKS)


_KEY = "--tokenizer"


@define
class HuggingFaceTokenizer:
    """A `codec` of the library tokenizers, and the chat `template` beside it.

    `words` are the common words that it encodes to one token each.
    """

    codec: Any
    template: ChatTemplate
    longest_token: int = field(init=False)
    leading_space: str = field(init=False)
    words: Sequence[str] = field(init=False)
    first_ids: Sequence[int] = field(init=False)
    next_ids: Sequence[int] = field(init=False)

    @classmethod
    def read(cls, path: Path) -> "HuggingFaceTokenizer":
        """Read a tokenizer.json, or a folder with one; raises ConfigError for any other file."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizer", _KEY) from None
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            codec = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            what = "is not there" if not file.is_file() else f"is not a tokenizer.json of Hugging Face's ({error})"
            raise ConfigError(_KEY, f"{file} {what}") from None
        codec.no_truncation()
        codec.no_padding()
        return cls(codec, ChatTemplate.beside(file))

    def __attrs_post_init__(self) -> None:
        self.longest_token = max(map(len, self.codec.get_vocab()), default=1)
        known = [word for word in COMMON if self._is_one_token(word)]
        self.words = self._independent(known)
        if len(self.words) < 2:
            raise ConfigError(_KEY, "has no common English words among its tokens, of which answers are made")
        self.first_ids = [self.encode(word, False)[0] for word in self.words]
        self.next_ids = [self.encode(f"{self.words[0]} {word}", False)[1] for word in self.words]
        after_space = [self.encode(f" {word}", False) for word in self.words]
        self.leading_space = " " if after_space == [[number] for number in self.next_ids] else ""

    @property
    def vocabulary(self) -> int:
        return int(self.codec.get_vocab_size())

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(self.codec.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.codec.decode(list(ids)))

    def piece(self, number: int) -> str:
        before = self.first_ids[0]
        return self.decode([before, number]).removeprefix(self.decode([before]))

    def chat(self, chat: Chat) -> list[int]:
        return self.encode(self.template.text(chat), False)

    def _is_one_token(self, word: str) -> bool:
        return len(self.encode(word, False)) == 1 and len(self.encode(f"{word} {word}", False)) == 2

    def _independent(self, words: list[str]) -> tuple[str, ...]:
        """Those of *words* that stay one token each beside each other, tried in eight random orders."""
        draw = random.Random(0)
        for _ in range(8):
            draw.shuffle(words)
            codes = self.codec.encode(" ".join(words), add_special_tokens=False)
            spans = {span[1] for span in codes.offsets}
            ends, kept = 0, list[str]()
            for word in words:
                ends += len(word)
                if ends in spans:
                    kept.append(word)
                ends += 1
            words = kept if len(codes.ids) != len(words) else words
        return tuple(sorted(words))

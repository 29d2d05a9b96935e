"""Chat templates: the Jinja template beside a tokenizer.json, which formats a chat as one text."""

import json
import re
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.foundation.files import LONGEST, regular_file
from ksim.server.errors import ApiError
from ksim.server.text.chat import Chat

__all__ = ["ChatTemplate"]

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

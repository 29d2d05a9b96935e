"""Chat templates: the Jinja template beside a tokenizer.json, which formats a chat as one text."""

import json
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ksim.foundation.errors import ConfigError, MissingExtra
from ksim.server.errors import ApiError
from ksim.server.text.chat import Chat

__all__ = ["ChatTemplate"]

#: For tokenizers without a chat template: ChatML.
_CHATML = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
           "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


class _Refused(Exception):
    """A template has called raise_exception."""


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
        written = jinja.read_text(encoding="utf-8") if jinja.is_file() else config.get("chat_template")
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
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError("--tokenizer", f"{path} is not JSON: {error}") from None
    return table if isinstance(table, dict) else {}


def _compiled(source: str) -> Any:
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingExtra("tokenizer", "a chat template") from None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=["jinja2.ext.loopcontrols"])
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _json
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ConfigError("--tokenizer", f"its chat template cannot be read: {error}") from None


def _refuse(message: str) -> None:
    raise _Refused(message)


def _json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)

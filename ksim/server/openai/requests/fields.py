"""The fields of requests, as in vLLM 0.33, and how they are read from JSON."""

from typing import Any, TypeVar

import attrs
from attrs import field, frozen

from ksim.server.errors import ApiError
from ksim.server.openai.requests.kinds import (
    Kind,
    Problem,
    either,
    flag,
    integer,
    items,
    literal,
    needing,
    number,
    optional,
    problem,
    record,
    table,
    text,
)

__all__ = ["ChatFields", "CompletionFields", "DetokenizeFields", "GenerateFields", "TokenizeFields", "missing", "read"]

T = TypeVar("T")

_INT64 = 2**63 - 1
#: vLLM's VLLM_MAX_STOP_STRINGS, and how many problems an error message lists.
_MAX_STOPS, _MAX_LISTED = 4, 10


def _known(kind: Kind, default: Any = None) -> Any:
    """A field of this *kind*; null is allowed if that is the default."""
    return field(default=default, metadata={"kind": optional(kind) if default is None else kind})


def _tokens(value: Any, place: str, problems: list[Problem]) -> Any:
    """Token ids; only the first problem of a list is kept."""
    if type(value) is list and {*map(type, value)} <= {int} and min(value, default=0) >= 0:
        return value
    own = list[Problem]()
    taken = items(integer(0))(value, place, own)
    problems += own[:1]
    return taken


@frozen(kw_only=True)
class GenerateFields:
    """The fields of both APIs.  Unknown fields are ignored, as in vLLM; docs/server.md lists those without effect."""

    model: str | None = _known(text)
    frequency_penalty: float | None = _known(number)
    logit_bias: dict[str, float] | None = _known(table)
    n: int | None = _known(integer())
    presence_penalty: float | None = _known(number)
    seed: int | None = _known(integer(-_INT64 - 1, _INT64))
    stop: Any = _known(either((text, items(text, _MAX_STOPS))))
    stream: bool | None = _known(flag)
    stream_options: dict[str, Any] | None = _known(record(
        "StreamOptions", include_usage=optional(flag), continuous_usage_stats=optional(flag)))
    temperature: float | None = _known(number)
    top_p: float | None = _known(number)
    user: str | None = _known(text)
    use_beam_search: bool = _known(flag, False)
    top_k: int | None = _known(integer())
    min_p: float | None = _known(number)
    repetition_penalty: float | None = _known(number)
    length_penalty: float = _known(number, 1.0)
    stop_token_ids: list[int] | None = _known(items(integer()))
    include_stop_str_in_output: bool = _known(flag, False)
    ignore_eos: bool = _known(flag, False)
    min_tokens: int = _known(integer(), 0)
    truncate_prompt_tokens: int | None = _known(integer(-1, _INT64))
    truncation_side: str | None = _known(literal("left", "right"))
    allowed_token_ids: list[int] | None = _known(items(integer()))
    prompt_logprobs: int | None = _known(integer())
    bad_words: list[str] = _known(items(text), ())
    response_format: dict[str, Any] | None = _known(record(
        "ResponseFormat", type=literal("text", "json_object", "json_schema", "structural_tag")))
    structured_outputs: dict[str, Any] | None = _known(table)
    priority: int = _known(integer(-_INT64 - 1, _INT64), 0)
    request_id: str = _known(text, "")
    session_id: str | None = _known(text)
    return_token_ids: bool | None = _known(flag)
    return_tokens_as_token_ids: bool | None = _known(flag)
    cache_salt: str | None = _known(text)

    @property
    def sequences(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def wants_running_usage(self) -> bool:
        return self.wants_usage and bool((self.stream_options or {}).get("continuous_usage_stats"))


@frozen(kw_only=True)
class CompletionFields(GenerateFields):
    """The fields of `/v1/completions`."""

    n: int | None = _known(integer(), 1)
    prompt: Any = _known(either((_tokens, items(_tokens), text, items(text))))
    echo: bool | None = _known(flag)
    logprobs: int | None = _known(integer())
    max_tokens: int | None = _known(integer())
    suffix: str | None = _known(text)
    add_special_tokens: bool = _known(flag, True)


@frozen(kw_only=True)
class ChatFields(GenerateFields):
    """The fields of `/v1/chat/completions`."""

    messages: list[dict[str, Any]] = field(metadata={"kind": items(table)})
    logprobs: bool | None = _known(flag)
    top_logprobs: int | None = _known(integer())
    max_tokens: int | None = _known(integer())
    max_completion_tokens: int | None = _known(integer())
    tools: list[dict[str, Any]] | None = _known(items(needing("function")))
    documents: list[dict[str, str]] | None = _known(items(table))
    tool_choice: Any = _known(either((text, table)))
    parallel_tool_calls: bool | None = _known(flag)
    reasoning_effort: str | None = _known(literal("none", "minimal", "low", "medium", "high", "xhigh", "max"))
    echo: bool = _known(flag, False)
    add_generation_prompt: bool = _known(flag, True)
    continue_final_message: bool = _known(flag, False)
    add_special_tokens: bool = _known(flag, False)
    chat_template_kwargs: dict[str, Any] | None = _known(table)


@frozen(kw_only=True)
class TokenizeFields:
    """The fields of `/tokenize`: a prompt or messages."""

    model: str | None = _known(text)
    prompt: str | None = _known(text)
    messages: list[dict[str, Any]] | None = _known(items(table))
    add_special_tokens: bool | None = _known(flag)
    return_token_strs: bool | None = _known(flag)
    tools: list[dict[str, Any]] | None = _known(items(table))
    add_generation_prompt: bool = _known(flag, True)
    continue_final_message: bool = _known(flag, False)
    chat_template_kwargs: dict[str, Any] | None = _known(table)


@frozen(kw_only=True)
class DetokenizeFields:
    """The fields of `/detokenize`."""

    tokens: list[int] = field(metadata={"kind": _tokens})
    model: str | None = _known(text)


def read(cls: type[T], body: Any) -> T:
    """The fields of the JSON *body*; raises ApiError with vLLM's list of what is wrong with them."""
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _refused([problem("model_attributes_type", "body", message, body)])
    values, problems = dict[str, Any](), list[Problem]()
    for known in attrs.fields(cls):  # type: ignore[arg-type]
        if known.name in body:
            values[known.name] = known.metadata["kind"](body[known.name], f"body.{known.name}", problems)
        elif known.default is attrs.NOTHING:
            problems.append(_missing(known.name, body))
    if problems:
        raise _refused(problems)
    return cls(**values)


def missing(name: str, body: Any) -> ApiError:
    """The error for a missing field."""
    return _refused([_missing(name, body)])


def _missing(name: str, body: Any) -> Problem:
    return problem("missing", f"body.{name}", "Field required", body)


def _refused(problems: list[Problem]) -> ApiError:
    """The error for fields of the wrong type; it lists ten problems at most."""
    label = "error" if len(problems) == 1 else "errors"
    lines = [f"{len(problems)} validation {label}:", *(f"  {told}" for told in problems[:_MAX_LISTED])]
    if len(problems) > _MAX_LISTED:
        lines.append(f"  ...and {len(problems) - _MAX_LISTED} more {label}")
    return ApiError("\n".join(lines), 400, param=problems[0]["loc"])

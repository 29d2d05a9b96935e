"""The fields of requests as in vLLM 0.33, and what vLLM refuses of them (its protocol.py and sampling_params.py)."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeVar

import attrs
from attrs import field, frozen

from ksim.server.errors import ApiError, invalid
from ksim.server.openai.kinds import (
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

__all__ = ["ChatFields", "CompletionFields", "DetokenizeFields", "GenerateFields", "TokenizeFields", "missing", "read",
           "check_chat", "check_completion", "check_sampling", "check_logprobs"]


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


#: vLLM's VLLM_MAX_N_SEQUENCES and VLLM_MAX_COMPLETION_PROMPTS.
_MAX_SEQUENCES, _MAX_PROMPTS = 16384, 1024
_SALT_WITHOUT = frozenset("@/\\\x00")


def check_completion(body: Mapping[str, Any]) -> None:
    """Raise ApiError for a completion that vLLM refuses before it reads the fields."""
    _check_generate(body)
    _check_logprobs(body, "logprobs")
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, list) and len(prompt) > _MAX_PROMPTS and not isinstance(prompt[0], int):
        raise invalid(f"prompt list length {len(prompt)} exceeds the maximum allowed count of {_MAX_PROMPTS}. To"
                      f" increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.", "prompt")


def check_chat(body: Mapping[str, Any]) -> None:
    """Raise ApiError for a chat that vLLM refuses before it reads the fields."""
    _check_generate(body)
    _check_logprobs(body, "top_logprobs")
    top = body.get("top_logprobs")
    if top and not body.get("logprobs"):
        raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    _check_tools(body)
    if body.get("chat_template") is not None or _named(body.get("chat_template_kwargs"), "chat_template"):
        raise ApiError("Chat template is passed with request, but --trust-request-chat-template is not set. Refused"
                       " request with untrusted chat template.", 400, "BadRequestError")
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def _named(table: Any, key: str) -> bool:
    return isinstance(table, dict) and table.get(key) is not None


def _check_generate(body: Mapping[str, Any]) -> None:
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if salt is not None and (len(salt) > 128 or _SALT_WITHOUT & {*salt}):
        raise invalid("Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or"
                      " NUL.", "cache_salt")
    if body.get("stream_options") and not body.get("stream"):
        raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict) and sum(outputs.get(key) is not None for key in ("json", "regex", "choice")) > 1:
        raise invalid("You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
                      "structured_outputs")
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema" and form.get("json_schema") is None:
        raise invalid("When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                      "response_format")


def _check_logprobs(body: Mapping[str, Any], name: str) -> None:
    for key in ("prompt_logprobs", name):
        value = body.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float):
            raise invalid(f"`{key}` must be an integer.", key, value)
        if key == "prompt_logprobs" and body.get("stream") and (value > 0 or value == -1):
            raise invalid("`prompt_logprobs` are not available when `stream=True`.", key)
        if value < 0 and value != -1:
            raise invalid(f"`{key}` must be a positive value or -1.", key, value)


def _check_tools(body: Mapping[str, Any]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        raise invalid("`tools` must not be an empty array. Either provide at least one tool or omit the field"
                      " entirely.", "tools")
    if choice is None or choice == "none":
        return
    if tools is None:
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice not in ("auto", "required") and not isinstance(choice, dict):
        raise invalid(f"Invalid value for `tool_choice`: {choice}! Only named tools, \"none\", \"auto\" or"
                      f" \"required\" are supported.", "tool_choice")
    if choice != "auto":  # made-up text is no call of a tool
        named = (choice.get("function") or {}) if isinstance(choice, dict) else {}
        shown = f"function \"{named.get('name')}\"" if isinstance(named, dict) and named else '"required"'
        raise invalid(f"tool_choice={shown} requires --tool-call-parser to be set")


def check_sampling(asked: GenerateFields, most: int | None, vocabulary: int) -> None:
    """Raise ApiError for sampling parameters out of range; *most* is how many tokens may be generated."""
    unknown = [key for key in asked.logit_bias or () if not key.removeprefix("-").isdecimal()]
    if unknown:
        raise invalid(f"logit_bias contains key(s) that cannot be converted to integer token IDs: {unknown}",
                      "logit_bias", unknown)
    _check_sequences(asked)
    _check_penalties(asked)
    _check_temperature(asked)
    if asked.top_p is not None and not 0 < asked.top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {asked.top_p}.", "top_p", asked.top_p)
    if asked.top_k is not None and asked.top_k < -1:
        raise invalid(f"top_k must be 0 (disable), or at least 1, got {asked.top_k}.")
    if asked.min_p is not None and not 0 <= asked.min_p <= 1:
        raise invalid(f"min_p must be in [0, 1], got {asked.min_p}.")
    _check_lengths(asked, most)
    if "" in asked.stops:
        raise invalid("stop cannot contain an empty string.")
    if "" in asked.bad_words:
        raise invalid(f"bad_words cannot contain an empty string. Got bad_words={list(asked.bad_words)}")
    beyond = [token for token in asked.stop_token_ids or () if not 0 <= token < vocabulary]
    if beyond:
        raise invalid(f"token_id(s) {beyond} in stop_token_ids contain out-of-vocab token ids. Vocabulary size:"
                      f" {vocabulary}", "stop_token_ids", beyond)


def _check_sequences(asked: GenerateFields) -> None:
    if asked.sequences < 1:
        raise invalid(f"n must be at least 1, got {asked.n}.")
    if asked.sequences > _MAX_SEQUENCES:
        raise invalid(f"n must be at most {_MAX_SEQUENCES}, got {asked.n}. To increase this limit, set the"
                      f" VLLM_MAX_N_SEQUENCES environment variable.")
    if asked.sequences > 1 and asked.temperature == 0 and not asked.use_beam_search:
        raise invalid(f"n must be 1 when using greedy sampling, got {asked.n}.")


def _check_penalties(asked: GenerateFields) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(asked, name)
        if value is not None and not -2 <= value <= 2:
            raise invalid(f"{name} must be in [-2, 2], got {value}.")
    penalty = asked.repetition_penalty
    if penalty is not None and not isfinite(penalty):
        raise invalid(f"repetition_penalty must be a finite number, got {penalty}.")
    if penalty is not None and penalty <= 0:
        raise invalid(f"repetition_penalty must be greater than zero, got {penalty}.")


def _check_temperature(asked: GenerateFields) -> None:
    value = asked.temperature
    if value is None or 0 <= value <= 2:
        return
    if not isfinite(value):
        raise invalid(f"temperature must be a finite number, got {value}.", "temperature", value)
    if value < 0:
        raise invalid(f"temperature must be non-negative, got {value}.", "temperature", value)
    raise invalid(f"temperature must be in [0, 2], got {value}.", "temperature", value)


def _check_lengths(asked: GenerateFields, most: int | None) -> None:
    if most is not None and most < 1:
        raise invalid(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
    if asked.min_tokens < 0:
        raise invalid(f"min_tokens must be greater than or equal to 0, got {asked.min_tokens}.")
    if most is not None and asked.min_tokens > most:
        raise invalid(f"min_tokens must be less than or equal to max_tokens={most}, got {asked.min_tokens}.")


def most_logprobs(asked: CompletionFields | ChatFields) -> int | None:
    """How many likeliest tokens are asked for at each place; None without log-probabilities."""
    if isinstance(asked, CompletionFields):
        return asked.logprobs
    return (asked.top_logprobs or 0) if asked.logprobs else None


def check_logprobs(asked: CompletionFields | ChatFields, allowed: int, vocabulary: int) -> None:
    """Raise ApiError if a request asks for more likeliest tokens than are *allowed* (max_logprobs); -1 allows all."""
    for kind, count in (("sample", most_logprobs(asked)), ("prompt", asked.prompt_logprobs)):
        wanted = vocabulary if count == -1 else count or 0
        if 0 <= allowed < wanted:
            name = "logprobs" if kind == "sample" else "prompt_logprobs"
            raise invalid(f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: {allowed}", name,
                          wanted)

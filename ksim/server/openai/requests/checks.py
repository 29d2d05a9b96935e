"""What vLLM 0.33 refuses although the types of the fields are right (its protocol.py and sampling_params.py)."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from ksim.server.errors import ApiError, invalid
from ksim.server.openai.requests.fields import ChatFields, CompletionFields, GenerateFields

__all__ = ["check_chat", "check_completion", "check_sampling"]

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

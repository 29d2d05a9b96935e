"""Requests to SGLang's `/generate`: their fields as in SGLang 0.5.23, and what it refuses of them.

Wrong types of fields get pydantic's words, those of sampling parameters the words of SGLang's schema.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from attrs import field, frozen

from ksim.server.errors import ApiError
from ksim.server.openai.fields import CompletionFields
from ksim.server.openai.kinds import Kind, either, flag, integer, items, optional, table
from ksim.server.openai.kinds import text as words
from ksim.server.openai.reply import to_json

__all__ = ["TYPES", "ContractError", "GenerateBody", "GenerateError", "GeneratePrompt", "check_types", "prompts_of",
           "single"]


class GenerateError(ApiError):
    """A request to `/generate` cannot be answered."""

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message}}

    @property
    def event(self) -> bytes:
        told = {"message": self.message, "type": "invalid_request_error", "code": self.status, "retryable": False}
        return b"data: " + to_json({"error": told}) + b"\n\n"


class ContractError(ApiError):
    """Sampling parameters are not of the types that SGLang's schema wants."""

    @property
    def body(self) -> dict[str, Any]:
        return {"error": self.message}


def _known(kind: Kind, default: Any = None) -> Any:
    return field(default=default, metadata={"kind": optional(kind) if default is None else kind})


def _each(kind: Kind) -> Any:
    """A field with one value for all prompts, or a list with one for each."""
    return _known(either((kind, items(optional(kind)))))


def _anything(value: Any, place: str, problems: Any) -> Any:
    return value


@frozen(kw_only=True)
class GenerateBody:
    """The fields of `/generate`.  Others are ignored, as in SGLang; docs/server.md lists those without effect."""

    rid: Any = _each(words)
    text: Any = _known(either((words, items(words))))
    input_ids: Any = _known(either((items(integer()), items(items(integer())))))
    input_embeds: Any = _known(_anything)
    image_data: Any = _known(_anything)
    video_data: Any = _known(_anything)
    audio_data: Any = _known(_anything)
    sampling_params: Any = _known(either((table, items(table))))
    return_logprob: Any = _each(flag)
    logprob_start_len: Any = _each(integer())
    top_logprobs_num: Any = _each(integer())
    return_text_in_logprobs: bool = _known(flag, False)
    return_prompt_token_ids: bool = _known(flag, False)
    return_hidden_states: Any = _known(_anything)
    custom_logit_processor: Any = _known(_anything)
    stream: bool = _known(flag, False)
    lora_path: Any = _each(words)
    session_id: str | None = _known(words)
    priority: int | None = _known(integer(-2**63, 2**63 - 1))
    extra_key: Any = _each(words)
    cache_salt: Any = _each(words)


# Sampling parameters.

#: What each may be, in the words of SGLang's schema; a plural stands for a list as well.
TYPES = {
    "max_new_tokens": "i64", "stop": "texts", "stop_token_ids": "ids", "stop_regex": "texts", "temperature": "f64",
    "top_p": "f64", "top_k": "i64", "min_p": "f64", "frequency_penalty": "f64", "presence_penalty": "f64",
    "repetition_penalty": "f64", "min_new_tokens": "i64", "n": "i64", "json_schema": "a string", "regex": "a string",
    "ebnf": "a string", "structural_tag": "a string", "ignore_eos": "a boolean", "skip_special_tokens": "a boolean",
    "spaces_between_special_tokens": "a boolean", "no_stop_trim": "a boolean", "stream_interval": "i64",
    "logit_bias": "a map", "sampling_seed": "i64", "custom_params": "", "beam_width": "i64", "watermark": "",
    "choice": "strings"}
_CLASSES: dict[str, tuple[type, ...]] = {
    "i64": (int,), "f64": (int, float), "a string": (str,), "a boolean": (bool,), "a map": (dict,),
    "a sequence": (list,)}
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
#: Its limits, and what it says of values beyond them.
_RANGES: Sequence[tuple[str, Callable[[Any], bool], str]] = (
    ("temperature", lambda value: 0 <= value < inf, "must be a non-negative finite number"),
    ("top_p", lambda value: 0 < value <= 1, "must be in (0, 1]"),
    ("min_p", lambda value: 0 <= value <= 1, "must be in [0, 1]"),
    ("top_k", lambda value: value >= 1 or value == -1, "must be -1 (disable) or at least 1"),
    ("frequency_penalty", lambda value: -2 <= value <= 2, "must be in [-2, 2]"),
    ("presence_penalty", lambda value: -2 <= value <= 2, "must be in [-2, 2]"),
    ("repetition_penalty", lambda value: 0 < value <= 2, "must be in (0, 2] (1.0 = no penalty)"),
    ("min_new_tokens", lambda value: value >= 0, "must be in [0, max_new_tokens]"),
    ("max_new_tokens", lambda value: value >= 0, "must be at least 0"),
    ("n", lambda value: value >= 1, "must be at least 1"),
    ("sampling_seed", lambda value: -2**63 <= value < 2**63, "must be in [-2**63, 2**63 - 1]"))
#: SGLang's default of max_new_tokens, and how many stop strings it takes.
_MAX_NEW_TOKENS, _MAX_STOPS = 128, 32
#: The most sequences of a request, and likeliest tokens at a place.
_MOST_SEQUENCES, _MOST_LIKELY = 16384, 20


def check_types(given: Any) -> None:
    """Raise ContractError for sampling parameters of the wrong types, or unknown ones."""
    for params in given if isinstance(given, list) else [given] if given is not None else ():
        for name, value in params.items():
            if name not in TYPES:
                listed = ", ".join(f"`{known}`" for known in TYPES)
                raise ContractError(f"unknown field `{name}`, expected one of {listed}")
            if value is not None:
                _check_type(value, TYPES[name])


def _check_type(value: Any, wanted: str) -> None:
    if wanted in ("ids", "strings", "texts"):
        if wanted != "texts" or isinstance(value, list):
            _check_class(value, "a sequence", "a sequence")
            for item in value:
                _check_class(item, *(("i64", "i64") if wanted == "ids" else ("a string", "a string")))
        else:
            _check_class(value, "a string", "a value or an array of values for StringOrList")
    elif wanted:
        _check_class(value, wanted, wanted)
    if wanted == "a map":
        for item in value.values():
            _check_class(item, "f64", "f64")


def _check_class(value: Any, wanted: str, told: str) -> None:
    """Raise ContractError for a value of another class than is *wanted*."""
    if not isinstance(value, _CLASSES[wanted]) or (isinstance(value, bool) and wanted != "a boolean"):
        raise ContractError(f"invalid type: {_shown(value)}, expected {told}")


def _shown(value: Any) -> str:
    """*value* as the schema shows it; long ones are shortened."""
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if value is None or isinstance(value, list | dict):
        return "null" if value is None else "map" if isinstance(value, dict) else "sequence"
    kind = "integer" if isinstance(value, int) else "floating point"
    return f'string "{value[:200]}"' if isinstance(value, str) else f"{kind} `{str(value)[:200]}`"


def check_ranges(params: Mapping[str, Any], vocabulary: int) -> None:
    """Raise GenerateError for sampling parameters out of range."""
    for name, holds, told in _RANGES:
        value = params.get(name)
        if value is not None and not holds(value):
            raise GenerateError(f"{name} {told}, got {str(value)[:50]}.")
    least, most = params.get("min_new_tokens") or 0, params.get("max_new_tokens", _MAX_NEW_TOKENS)
    if most is not None and least > most:
        raise GenerateError(f"min_new_tokens must be in [0, max_new_tokens({most})], got {least}.")
    for token in params.get("logit_bias") or ():
        if not (token.isdecimal() and len(token) < 20 and int(token) < vocabulary):
            raise GenerateError(f"logit_bias must has keys in [0, {vocabulary - 1}], got {token[:50]}.")
    if len(stops_of(params)) > _MAX_STOPS:
        raise GenerateError(f"at most {_MAX_STOPS} stop strings are allowed, got {len(stops_of(params))}")
    if sum(bool(params.get(name)) for name in _GRAMMARS) > 1:
        raise GenerateError("Only one of json_schema, regex, ebnf, or structural_tag can be set.")
    if (params.get("beam_width") or 1) != 1:
        raise GenerateError("beam_width must be 1: this server has no beam search in /generate")


def stops_of(params: Mapping[str, Any]) -> list[str]:
    """The stop strings of sampling parameters."""
    stop = params.get("stop")
    return [stop] if isinstance(stop, str) else list(stop or ())


# Prompts.


@frozen
class GeneratePrompt:
    """One prompt of a request: its text or ids, and what is asked for it."""

    text: str | None
    ids: Sequence[int] | None
    params: Mapping[str, Any]
    rids: Sequence[str]
    adapter: str
    salt: str | None
    logprobs: int | None  # how many likeliest tokens at each place
    logprobs_start: int  # the first place in the prompt, or -1

    @property
    def most(self) -> int | None:
        """How many tokens may be generated; None means as many as there is room for."""
        most = self.params.get("max_new_tokens", _MAX_NEW_TOKENS)
        return None if most is None else int(most)

    @property
    def interval(self) -> int:
        return max(self.params.get("stream_interval") or 1, 1)

    def fields(self, asked: GenerateBody, vocabulary: int, allowed: int) -> CompletionFields:
        """The same as fields of a completion; at most so many log-probabilities are *allowed* there."""
        params, logged = self.params, None
        if self.logprobs is not None and self.logprobs_start >= 0:
            logged = self.logprobs if allowed < 0 else min(self.logprobs, allowed)
        ids = [token for token in params.get("stop_token_ids") or () if 0 <= token < vocabulary]
        return CompletionFields(
            n=len(self.rids), stop=stops_of(params), stop_token_ids=ids, prompt_logprobs=logged, stream=asked.stream,
            ignore_eos=bool(params.get("ignore_eos")), min_tokens=params.get("min_new_tokens") or 0,
            include_stop_str_in_output=bool(params.get("no_stop_trim")), priority=asked.priority or 0,
            session_id=asked.session_id, cache_salt=self.salt)


_REFUSED = (
    ("input_embeds", "input_embeds is provided, and this server takes only text and input_ids"),
    ("image_data", "image_data is not simulated in /generate; send images to /v1/chat/completions"),
    ("video_data", "video_data is not simulated"), ("audio_data", "audio_data is not simulated"),
    ("return_hidden_states", "The server is not configured to return hidden states."),
    ("custom_logit_processor", "The server is not configured to enable custom logit processor."))


def prompts_of(asked: GenerateBody, new_rid: Callable[[], str], vocabulary: int) -> list[GeneratePrompt]:
    """The prompts of a request, of which *new_rid* names each sequence; raises GenerateError if they cannot be."""
    if asked.text is None and asked.input_ids is None and asked.input_embeds is None:
        raise GenerateError("Either text, input_ids or input_embeds should be provided.")
    for name, told in _REFUSED:
        if getattr(asked, name):
            raise GenerateError(told)
    texts, ids = _batch(asked.text, str), _batch(asked.input_ids, int)
    if texts == [] or ids == [] or [] in (ids or ()):
        raise GenerateError("text cannot be empty." if texts == [] else "input_ids cannot be empty.")
    size = len(texts or ids or ())
    if ids and texts and len(ids) != len(texts):
        raise GenerateError("text and input_ids should have the same number of prompts")
    params = [one or {} for one in _spread(asked.sampling_params, size, "sampling_params")]
    for one in params:
        check_ranges(one, vocabulary)
    samples = {one.get("n") or 1 for one in params}
    if len(samples) > 1:
        raise GenerateError("The parallel_sample_num should be the same for all samples in sample params.")
    if (sequences := size * max(samples)) > _MOST_SEQUENCES:
        raise GenerateError(f"The request has {sequences:,} sequences, and this server takes {_MOST_SEQUENCES:,}")
    return _made(asked, texts, ids, params, _rids(asked.rid, size, samples.pop(), single(asked), new_rid))


def _made(asked: GenerateBody, texts: list[Any] | None, ids: list[Any] | None, params: Sequence[Mapping[str, Any]],
          rids: Sequence[Sequence[str]]) -> list[GeneratePrompt]:
    size, names = len(params), ("lora_path", "extra_key", "cache_salt", "return_logprob", "top_logprobs_num",
                                "logprob_start_len")
    columns = zip(texts or [None] * size, ids or [None] * size, params, rids,
                  *(_spread(getattr(asked, name), size, name) for name in names), strict=True)
    made = list[GeneratePrompt]()
    for said, tokens, one, own, adapter, key, salt, wanted, top, start in columns:
        if wanted and ((top or 0) < 0 or (start or 0) < -1):
            raise GenerateError("top_logprobs_num must be at least 0, and logprob_start_len at least -1")
        made.append(GeneratePrompt(
            said, tokens, one, own, adapter=adapter or "", salt="\0".join(filter(None, (key, salt))) or None,
            logprobs=min(top or 0, _MOST_LIKELY) if wanted else None, logprobs_start=-1 if start is None else start))
    return made


def single(asked: GenerateBody) -> bool:
    """Whether a request has one prompt, and not a list of them."""
    given = asked.input_ids if asked.text is None else asked.text
    return isinstance(given, str) or bool(given and isinstance(given[0], int))


def _batch(given: Any, item: type) -> list[Any] | None:
    """Prompts as a list: a text, a list of token ids, or several of these."""
    if given is None:
        return None
    alone = isinstance(given, str) if item is str else bool(given) and isinstance(given[0], int)
    return [given] if alone else list(given)


def _spread(given: Any, size: int, name: str) -> list[Any]:
    """One value for each of so many prompts."""
    if not isinstance(given, list):
        return [given] * size
    if len(given) != size:
        raise GenerateError(f"The length of {name} should be equal to the batch size.")
    return given


def _rids(given: Any, size: int, samples: int, alone: bool, new_rid: Callable[[], str]) -> list[list[str]]:
    """The id of each sequence of each prompt; those of several sequences are made up, as SGLang does."""
    if isinstance(given, list):
        if len(given) != size or None in given:
            raise GenerateError("The specified rids length mismatch with the batch_size for batch processing.")
        if twice := [rid for rid, times in Counter(given).items() if times > 1]:
            raise GenerateError(f"Duplicate request IDs detected within the request: {twice}")
    if given is None or samples > 1:
        return [[new_rid() for _ in range(samples)] for _ in range(size)]
    return [[rid] for rid in (given if isinstance(given, list) else [given] if alone else [
        f"{given}_{number}" for number in range(size)])]

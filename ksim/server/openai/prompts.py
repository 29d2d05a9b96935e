"""Prompts of requests: texts, chats and images, their tokens, and the names of their blocks.

The size of an image comes from its header, its identity from all of its bytes.
"""

import base64
import binascii
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from attrs import evolve, frozen

from ksim.flow.request import Image
from ksim.server.errors import ApiError, invalid
from ksim.server.openai.fields import ChatFields, CompletionFields, GenerateFields, TokenizeFields
from ksim.server.text import Chat, Tokenizer

__all__ = ["CHUNK", "ApiPrompt", "Remember", "chat_prompt", "check_asked", "check_ids", "check_text",
           "completion_prompts", "block_names", "image_of", "chat_of"]


#: Tokens of a block that has a name: vLLM's default block size.
CHUNK = 16
#: Called with the name of a block and its token ids.
Remember = Callable[[int, Sequence[int]], Any]


@frozen
class ApiPrompt:
    """The token ids of a prompt, its text if the client sent one, and its images."""

    ids: Sequence[int]
    text: str | None = None
    images: Sequence[Image] = ()

    def truncated(self, asked: GenerateFields, max_model_len: int) -> "ApiPrompt":
        """The prompt after `truncate_prompt_tokens`; -1 leaves room for one token of output."""
        kept = asked.truncate_prompt_tokens
        if kept is not None and kept < 0:
            kept = max_model_len - 1
        if kept is None or kept >= len(self.ids):
            return self
        start = len(self.ids) - kept if asked.truncation_side == "left" else 0
        return evolve(self, ids=self.ids[start:start + kept], text=None)

    def check(self, tokens: int, max_model_len: int) -> None:
        """Raise ApiError if the prompt is empty, or longer than the context; it counts as so many *tokens*."""
        if not tokens:
            raise ApiError("The decoder prompt cannot be empty", 400, "BadRequestError")
        if tokens > max_model_len:
            if self.text is not None:  # vLLM stops to tokenize there
                tokens = max_model_len + 1
            least = "at least " if tokens == max_model_len + 1 else ""
            raise invalid(f"This model's maximum context length is {max_model_len} tokens. However, your prompt"
                          f" contains {least}{tokens} input tokens, which exceeds this limit even without any output"
                          f" tokens. Please reduce the length of the input prompt.", "input_tokens", tokens)


def check_asked(asked: GenerateFields, most: int | None, max_model_len: int, name: str) -> None:
    """Raise ApiError if a request asks for more tokens than the context has; the field *name* has the value *most*."""
    if most is not None and most > max_model_len:
        raise invalid(f"{name}={most} cannot be greater than max_model_len={max_model_len}. Please request fewer output"
                      f" tokens.", name, most)
    kept = asked.truncate_prompt_tokens
    if kept is not None and kept > max_model_len:
        raise invalid(f"truncate_prompt_tokens={kept} cannot be greater than max_model_len = {max_model_len}. Please"
                      f" request a smaller truncation size.", "truncate_prompt_tokens", kept)


def check_text(characters: int, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Raise ApiError for a text that is too long for the context even if all of its tokens were the longest."""
    if characters > (most := max_model_len * tokenizer.longest_token):
        raise invalid(f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains"
                      f" {characters} characters (more than {most} characters, which is the upper bound for"
                      f" {max_model_len} input tokens). Please reduce the length of the input prompt.", "input_text",
                      characters)


def chat_prompt(chat: Chat, tokenizer: Tokenizer, max_model_len: int) -> ApiPrompt:
    """The prompt that *chat* makes; images come after the text of their messages."""
    check_text(sum(len(text) for _, text in chat.messages), tokenizer, max_model_len)
    places = {number: len(tokenizer.chat(evolve(chat, messages=chat.messages[:number + 1], answered=False,
                                                continued=True))) for number, _ in chat.images}
    return ApiPrompt(tokenizer.chat(chat), "", [evolve(image, at=places[number]) for number, image in chat.images])


def completion_prompts(asked: CompletionFields, tokenizer: Tokenizer, vocabulary: int,
                       max_model_len: int) -> list[ApiPrompt]:
    """The prompts of a completion: one or several, each a text or token ids."""
    prompt = asked.prompt
    if not prompt:
        raise invalid("You must pass at least one prompt", "prompt")
    several = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    for part in several:
        if isinstance(part, str):
            check_text(len(part), tokenizer, max_model_len)
        else:
            check_ids(part, max(vocabulary, tokenizer.vocabulary))
    return [ApiPrompt(tokenizer.encode(part, asked.add_special_tokens), part) if isinstance(part, str)
            else ApiPrompt(part) for part in several]


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raise ApiError for an id beyond the vocabulary."""
    if ids and max(ids) >= vocabulary:
        raise ApiError(f"Token id {max(ids)} is out of vocabulary", 400, "BadRequestError")


def block_names(prompt: Sequence[int], output: Sequence[int], salt: str | None, remember: Remember | None) -> list[int]:
    """Names of the blocks of a sequence, which are equal if their tokens are; the first one also depends on *salt*.

    *remember* is called with each name and its tokens.
    """
    ids = array("I", prompt)
    ids.extend(output)
    packed, size = ids.tobytes(), CHUNK * ids.itemsize
    blocks = [packed[at:at + size] for at in range(0, len(packed), size)]
    if salt is not None and blocks:
        blocks[0] += salt.encode("utf-8", "replace")
    called = [int.from_bytes(blake2b(block, digest_size=6).digest()) for block in blocks]
    if remember is not None:
        for number, name in enumerate(called):
            remember(name, ids[number * CHUNK:(number + 1) * CHUNK])
    return called


#: Pixels of an image at a URL: the server fetches nothing.
_NOT_FETCHED = (1024, 1024)
_MAX_SIDE = 2**16


def image_of(value: Any) -> Image:
    """The image of an `image_url` part of a message; raises ApiError if its size cannot be read.

    Two images are the same if their bytes, or their URLs, are equal.
    """
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise invalid("image_url must have a url, such as data:image/png;base64,...", "image_url")
    width, height = _size(url) if url.startswith("data:") else _NOT_FETCHED
    return Image(width, height, 2**31, int.from_bytes(blake2b(url.encode(), digest_size=6).digest()))


def _size(url: str) -> tuple[int, int]:
    head, comma, packed = url.partition(",")
    try:
        data = base64.b64decode(packed, validate=True) if comma and head.endswith(";base64") else b""
    except (binascii.Error, ValueError):
        data = b""
    size = next(_sizes(data), None)
    if size is None or not all(0 < side <= _MAX_SIDE for side in size):
        raise ApiError("Failed to load image: cannot read its size; expected PNG, JPEG, GIF or WebP in base64", 422,
                       "UnprocessableEntityError", "image_url")
    return size


def _sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """The size in the header of a PNG, GIF, JPEG or WebP; nothing for other data."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        yield int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    if data[:4] == b"GIF8" and len(data) >= 10:
        yield int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data[:2] == b"\xff\xd8":
        yield from _jpeg_size(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        yield _webp_size(data)


def _jpeg_size(data: bytes) -> Iterator[tuple[int, int]]:
    """The size in a JPEG's frame header, which follows other segments."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            yield int.from_bytes(data[at + 7:at + 9]), int.from_bytes(data[at + 5:at + 7])
            return
        at += 2 + max(int.from_bytes(data[at + 2:at + 4]), 2)


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


_ROLES = ("developer", "system", "user", "assistant", "tool", "function")


def chat_of(asked: ChatFields | TokenizeFields) -> Chat:
    """The chat of a request; raises ApiError for a message that vLLM would not read."""
    parts = [_Message.of(message, number) for number, message in enumerate(asked.messages or ())]
    return Chat([(part.role, part.text) for part in parts],
                [(number, image) for number, part in enumerate(parts) for image in part.images],
                asked.tools or (), asked.add_generation_prompt and not asked.continue_final_message,
                asked.continue_final_message, asked.chat_template_kwargs)


@frozen
class _Message:
    role: str
    text: str
    images: Sequence[Image]

    @classmethod
    def of(cls, message: dict[str, Any], number: int) -> "_Message":
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise invalid(f"messages[{number}] has no role; expected one of {', '.join(_ROLES)}", "messages")
        texts, images = _parts(content, number)
        calls = message.get("tool_calls") or ()
        if not isinstance(calls, list | tuple):
            raise invalid(f"tool_calls of messages[{number}] must be a list", "messages")
        return cls(role, "\n".join([*texts, *map(_call, calls)]), images)


def _call(call: Any) -> str:
    """A call of a tool, as a model could have written it."""
    function = call.get("function") if isinstance(call, dict) else None
    named = function if isinstance(function, dict) else {}
    return f"{named.get('name', '')}({named.get('arguments', '')})"


def _parts(content: Any, number: int) -> tuple[list[str], list[Image]]:
    """The texts and images of a message's content: a text, a list of parts, or nothing."""
    if content is None or isinstance(content, str):
        return [content] if content else [], []
    if not isinstance(content, list):
        raise invalid(f"content of messages[{number}] must be a text or a list of parts", "messages")
    texts, images = list[str](), list[Image]()
    for part in content:
        _take(part, number, texts, images)
    return texts, images


def _take(part: Any, number: int, texts: list[str], images: list[Image]) -> None:
    """Add *part* to *texts* or *images*; raises ApiError for an unknown type."""
    if isinstance(part, str):
        texts.append(part)
        return
    kind = _kind(part) if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text", "refusal", "thinking"):
        said = part.get("refusal" if kind == "refusal" else "thinking" if kind == "thinking" else "text")
        if not isinstance(said, str):
            raise invalid(f"a part of messages[{number}] of type {kind} has no text", "messages")
        texts.append(said)
    elif kind in ("image_url", "input_image", "image"):
        images.append(image_of(part.get("image_url", part.get("image"))))
    elif kind in ("input_audio", "audio_url", "video_url", "video", "image_embeds", "audio_embeds"):
        medium = "image" if kind.startswith("image") else "video" if kind.startswith("video") else "audio"
        raise invalid(f"At most 0 {medium}(s) may be provided in one prompt.", medium)
    else:
        raise ApiError(f"Unknown part type: {kind}", 400, "BadRequestError")


def _kind(part: dict[str, Any]) -> Any:
    """The type of a part; without `type`, it follows from the part's key, as in vLLM."""
    if "type" in part:
        return part["type"]
    return next((kind for kind in ("text", "image_url", "audio_url", "input_audio", "video_url") if kind in part), None)

"""The messages of a chat request: roles, texts and images."""

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ksim.flow.images import Image
from ksim.server.errors import ApiError, invalid
from ksim.server.openai.requests.fields import ChatFields, TokenizeFields
from ksim.server.openai.requests.images import image_of
from ksim.server.text.chat import Chat

__all__ = ["chat_of"]

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

"""Prompts: their tokens, the names of their blocks, and whether they fit the context."""

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from attrs import evolve, frozen

from ksim.flow.images import Image
from ksim.server.errors import ApiError, invalid
from ksim.server.openai.requests.fields import CompletionFields, GenerateFields
from ksim.server.text.chat import Chat
from ksim.server.text.tokenizer import Tokenizer

__all__ = ["CHUNK", "Prompt", "Remember", "chat_prompt", "check_asked", "check_ids", "check_text", "completion_prompts",
           "block_names"]

#: Tokens of a block that has a name: vLLM's default block size.
CHUNK = 16
#: Called with the name of a block and its token ids.
Remember = Callable[[int, Sequence[int]], Any]


@frozen
class Prompt:
    """The token ids of a prompt, its text if the client sent one, and its images."""

    ids: Sequence[int]
    text: str | None = None
    images: Sequence[Image] = ()

    def truncated(self, asked: GenerateFields, max_model_len: int) -> "Prompt":
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


def chat_prompt(chat: Chat, tokenizer: Tokenizer, max_model_len: int) -> Prompt:
    """The prompt that *chat* makes; images come after the text of their messages."""
    check_text(sum(len(text) for _, text in chat.messages), tokenizer, max_model_len)
    places = {number: len(tokenizer.chat(evolve(chat, messages=chat.messages[:number + 1], answered=False,
                                                continued=True))) for number, _ in chat.images}
    return Prompt(tokenizer.chat(chat), "", [evolve(image, at=places[number]) for number, image in chat.images])


def completion_prompts(asked: CompletionFields, tokenizer: Tokenizer, vocabulary: int,
                       max_model_len: int) -> list[Prompt]:
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
    return [Prompt(tokenizer.encode(part, asked.add_special_tokens), part) if isinstance(part, str) else Prompt(part)
            for part in several]


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

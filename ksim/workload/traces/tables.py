"""Public traces whose rows are an arrival and two lengths."""

from collections.abc import Hashable, Iterator
from typing import Any

from attrs import Attribute, field, frozen

from ksim.flow.request import Image
from ksim.workload.lines import Lines
from ksim.workload.rows import (
    Dates,
    Row,
    chunk_names,
    columns,
    count,
    header,
    id_list,
    image_size,
    integer,
    moment,
    shown,
)

__all__ = ["Azure", "Burstgpt", "Splitwise", "Vidur"]


_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _size(_: Any, attribute: "Attribute[str]", value: str) -> None:
    if value:
        image_size(value)


@frozen
class Azure:
    """Azure's CSV of 2023, 2024 and, with images, 2025: TIMESTAMP, ContextTokens, GeneratedTokens.

    https://github.com/Azure/AzurePublicDataset

    Reads wall-clock times, with or without fraction and zone; a time without a zone is UTC.

    The trace of 2025 says how many images a request has, and not their sizes: all have the size `image`, such as
    "1024x1024", or are text to a model.  ContextTokens count their tokens already.
    """

    image: str = field(default="", validator=_size)

    example = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:00:00.1234500,350,40\r\n"
        "2023-11-16 18:00:01,400,100\r\n"
        "2023-11-16 18:00:01.500000+00:00,20,8"
    )

    time_unit = "dates"
    empty = "error"

    def recognises(self, first: str) -> bool:
        return set(_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        dates = Dates(lines)
        if self.image:
            yield from self._with_images(lines, dates)
            return
        for time, prompt, output in columns(lines, _COLUMNS):
            yield Row(dates.seconds(time, "TIMESTAMP"), count(prompt, "ContextTokens", lines),
                      count(output, "GeneratedTokens", lines))

    def _with_images(self, lines: Lines, dates: Dates) -> Iterator[Row]:
        width, height = image_size(self.image)
        for time, prompt, output, number in columns(lines, (*_COLUMNS, "NumImages")):
            tokens, images = count(prompt, "ContextTokens", lines), _images(number, lines)
            yield Row(dates.seconds(time, "TIMESTAMP"), tokens, count(output, "GeneratedTokens", lines),
                      images=(Image(width, height, tokens, counted=True),) * images)


def _images(text: str, lines: Lines) -> int:
    if not text.isdecimal() or len(text) > 3:
        raise lines.error(f"NumImages is {text[:60]!r}; expected a whole number of images, at most 999")
    return int(text)


_BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class Burstgpt:
    """BurstGPT's CSV: Timestamp in seconds, Request tokens, Response tokens; newer files have a Session ID.

    https://github.com/HPMLL/BurstGPT

    Reads columns by name, since their order differs between releases; failed requests have zero tokens.
    """

    example = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "7,ChatGPT,300,20,320,Conversation log\n"
        "46,GPT-4,0,0,0,Conversation log\n"
        "46,GPT-4,1000,200,1200,API log\n"
    )

    time_unit = "s"
    empty = "skip"

    def recognises(self, first: str) -> bool:
        return set(_BURSTGPT_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        for time, prompt, output, session in columns(lines, _BURSTGPT_COLUMNS, ("Session ID",)):
            yield Row(moment(time, "Timestamp", lines), count(prompt, "Request tokens", lines),
                      count(output, "Response tokens", lines), session=session)


_SPLITWISE_COLUMNS = ("arrival_timestamp", "prompt_size", "token_size")


class Splitwise:
    """splitwise-sim's CSV: arrival_timestamp in seconds, prompt_size, token_size.

    https://github.com/Mutinifni/splitwise-sim

    Reads one request per row; a `batch_size` other than 1 is an error, type and application are ignored.
    """

    example = (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,1,1,500,30\n"
        "1,2,0,1.5,1,2000,7\n"
    )
    time_unit = "s"
    empty = "error"

    def recognises(self, first: str) -> bool:
        return set(_SPLITWISE_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        for time, prompt, output, batch in columns(lines, _SPLITWISE_COLUMNS, ("batch_size",)):
            if batch not in ("", "1"):
                raise lines.error(f"batch_size is {shown(batch)}; ksim reads one request per row; write a row for "
                                  "each")
            yield Row(moment(time, "arrival_timestamp", lines), count(prompt, "prompt_size", lines),
                      count(output, "token_size", lines))


_VIDUR_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_CHUNK_TOKENS = 16


class Vidur:
    """Vidur's CSV: arrived_at in seconds, num_prefill_tokens, num_decode_tokens; Frontier adds block_hash_ids.

    https://github.com/microsoft/vidur and https://github.com/NetX-lab/Frontier

    Reads the traces of both simulators.

    Frontier's `session_id` chooses a replica and does not order the rows, so it is
    not a session here.  Without `block_hash_ids` it means that prompts hold only
    what is new to their session, which is an error.
    """

    example = (
        "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n"
        "2.5,32,2,7,11|22\n"
        "2.75,20,3,7,11|33\n"
    )

    time_unit = "s"
    empty = "error"

    def recognises(self, first: str) -> bool:
        return set(_VIDUR_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        _refuse_partial_prompts(lines)
        size = chunk_tokens or _CHUNK_TOKENS
        for time, tokens, output, priority, ids in columns(lines, _VIDUR_COLUMNS, ("priority", "block_hash_ids")):
            prompt = count(tokens, "num_prefill_tokens", lines)
            yield Row(moment(time, "arrived_at", lines), prompt, count(output, "num_decode_tokens", lines),
                      _blocks(ids, prompt, size, lines), size, integer(priority, "priority", lines))


def _refuse_partial_prompts(lines: Lines) -> None:
    names = header(lines.first())
    if "session_id" in names and "block_hash_ids" not in names:
        raise lines.error("has session_id without block_hash_ids, so each prompt holds only what is new to its "
                          "session; write whole prompts under the columns arrival,prompt,output,session")


def _blocks(text: str, prompt: int, size: int, lines: Lines) -> tuple[Hashable, ...]:
    """Parse ids such as ``11|22`` or ``[11, 22]``."""
    ids = [integer(name, "block_hash_ids", lines) for name in id_list(text, "block_hash_ids", lines)]
    return chunk_names(ids, prompt, size, lines)

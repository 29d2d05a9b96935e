"""ksim's own CSV or JSON lines: arrival in seconds or as a date, prompt, output; --columns for other names."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from math import nan
from typing import Any

from attrs import field, frozen

from ksim.workload.jsonl import first_object, keys, named_members
from ksim.workload.lines import Lines
from ksim.workload.rows import (
    FIELDS,
    Dates,
    Row,
    beams,
    chunk_names,
    count,
    duration,
    flag,
    header,
    id_list,
    images_of,
    integer,
    is_date,
    known_fields,
    label,
    logprobs,
    moment,
    most_tokens,
    named_columns,
    output_lengths,
    sequences,
    share,
    unit_in_use,
    unit_of,
)

__all__ = ["Plain"]

_CHUNK_TOKENS = 16
_NEEDED = ("arrival", "prompt", "output")
#: A column that no file has.
_NOWHERE = "\0"


@frozen
class Plain:
    """Reads the rows of one `session` as its turns, each at least `delay` seconds after the end of the turn before it.

    `columns` maps a field to its column, or key of JSON, if that has another name; times are in the unit with which
    that name ends, such as start_ms or "Start (ms)", else in s.
    Without a column of arrivals, the trace has no arrival times.
    """

    columns: Mapping[str, str] = field(factory=dict, validator=known_fields)

    example = (
        "arrival,prompt,output,priority,session,delay,tenant\n"
        "0.0,512,64,0,,,alice\n"
        "0.25,100,20,1,chat,,bob\n"
        "0.25,140,20,1,chat,3.5,bob\n"
    )
    empty = "error"

    @property
    def time_unit(self) -> str:
        """The unit that the name of the column of arrivals says, else s."""
        return unit_of(self.columns.get("arrival", "arrival")) or "s"

    def recognises(self, first: str) -> bool:
        names = keys(first) if first.startswith("[") else first_object(first).keys() or header(first)
        return set(_NEEDED) <= set(names)

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        size = chunk_tokens or _CHUNK_TOKENS
        names = [self.columns.get(name, name) for name in FIELDS]
        if "model" not in self.columns and "model" in self.columns.values():  # what another field is read from
            names[-1] = _NOWHERE
        (at, of_prompt, of_output, of_priority, of_session, of_delay, of_tenant, of_adapter, of_ids, of_images,
         of_acceptance, of_most, of_n, of_logprobs, of_beams, of_outputs, of_further, of_aborted, of_eos,
         of_model) = names
        values = self._values(lines, names)
        first = next(values, None)
        if first is None:
            return
        seconds = _times(first[0], at, lines)
        waits, stays = (unit_in_use(name, lines) for name in (of_delay, of_aborted))
        for (time, tokens, output, priority, session, delay, tenant, adapter, ids, images, acceptance, most, n, scores,
             width, outputs, further, aborted, ignores, model) in chain((first,), values):
            prompt, sampled = count(tokens, of_prompt, lines), count(output, of_output, lines)
            yield Row(seconds(time, at), prompt, sampled,
                      _chunks(ids, of_ids, prompt, size, lines) if further == "" and ids != "" else
                      _all_chunks((ids, further), of_further, (prompt, sampled), size, lines) if further != "" else (),
                      size,
                      integer(priority, of_priority, lines) if priority != "" else 0,
                      session if session.__class__ is str else label(session, of_session, lines),
                      duration(delay, of_delay, lines, waits) if delay != "" else 0.0,
                      tenant if tenant.__class__ is str else label(tenant, of_tenant, lines),
                      adapter if adapter.__class__ is str else label(adapter, of_adapter, lines),
                      images=images_of(images, of_images, prompt, lines) if images != "" else (),
                      acceptance=share(acceptance, of_acceptance, lines) if acceptance != "" else None,
                      max_tokens=most_tokens(most, of_most, sampled, lines) if most != "" else None,
                      n=sequences(n, of_n, lines) if n != "" else 1,
                      prompt_logprobs=logprobs(scores, of_logprobs, lines) if scores != "" else None,
                      beam_width=beams(width, of_beams, lines) if width != "" else 0,
                      outputs=output_lengths(outputs, of_outputs, (n, sampled), lines) if outputs != "" else (),
                      aborted=duration(aborted, of_aborted, lines, stays) if aborted != "" else None,
                      ignore_eos=flag(ignores, of_eos, lines) if ignores != "" else None,
                      model=model if model.__class__ is str else label(model, of_model, lines))

    def _values(self, lines: Lines, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of all fields, in the order of `FIELDS`, of CSV or JSON."""
        needed = [name for field, name in zip(FIELDS, names, strict=True)
                  if field in self.columns or field in ("prompt", "output")]
        read = named_members if lines.first().startswith(("{", "[")) else named_columns
        return read(lines, names, needed)


def _times(first: Any, column: str, lines: Lines) -> Callable[[Any, str], float]:
    """Return a function from arrivals to seconds; the first arrival tells if they are numbers, dates or absent."""
    if first == "":
        return lambda value, name: nan if value == "" else moment("", name, lines)
    if not is_date(first) or str(first).isdecimal():
        unit = unit_in_use(column, lines)
        return lambda value, name: moment(value, name, lines, unit)
    if lines.per_second:
        raise lines.error("has dates, which have no unit of time; leave out time_unit (--time-unit)")
    return Dates(lines).seconds


def _chunks(ids: Any, name: str, prompt: int, size: int, lines: Lines) -> tuple[Hashable, ...]:
    return chunk_names(id_list(ids, name, lines) if isinstance(ids, str) else ids, prompt, size, lines, loose=True)


def _all_chunks(ids: tuple[Any, Any], name: str, lengths: tuple[int, int], size: int, lines: Lines
                ) -> tuple[Hashable, ...]:
    """The names of the blocks that the prompt fills, and of those after them, with the output in them."""
    prompt, output = lengths
    filled, further = ([] if part == "" else id_list(part, name, lines) if isinstance(part, str) else part
                       for part in ids)
    most = -(-(prompt % size + output) // size)
    if not isinstance(further, list) or len(further) > most or len(filled) != prompt // size:
        raise lines.error(f"{name} is a list of at most {most:,} blocks of {size} after those that the prompt fills,"
                          f" and hash_ids has the {prompt // size:,} that it fills")
    return chunk_names([*filled, *further], (len(filled) + len(further)) * size, size, lines)

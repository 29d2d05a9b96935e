"""What requests ask of sampling: how many sequences or beams, how many tokens, and log-probabilities."""

from typing import Any

from ksim.workload.fields import count, integer, shown
from ksim.workload.lines import Lines

#: The most sequences of a request: VLLM_MAX_N_SEQUENCES in vLLM.
MOST_SEQUENCES = 16384


def sequences(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as the number of sequences of a request; raise DataError for none, or more than vLLM takes."""
    number = integer(value, name, lines)
    if not 1 <= number <= MOST_SEQUENCES:
        raise lines.error(f"{name} is {shown(value)}; a request has 1 to {MOST_SEQUENCES:,} sequences")
    return number


def beams(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as the width of a beam search, 0 for none; raise DataError for a width that vLLM does not take."""
    width = integer(value, name, lines)
    if not 0 <= width <= MOST_SEQUENCES:
        raise lines.error(f"{name} is {shown(value)}; a beam search has 1 to {MOST_SEQUENCES:,} beams, and 0 is none")
    return width


def logprobs(value: Any, name: str, lines: Lines) -> int:
    """Return *value* as a number of log-probabilities at each place of a prompt; raise DataError for one below -1."""
    number = integer(value, name, lines)
    if number < -1:
        raise lines.error(f"{name} is {shown(value)}; it must be non-negative, or -1 for the whole vocabulary")
    return number


def most_tokens(value: Any, name: str, output: int, lines: Lines) -> int:
    """Return *value* as the most tokens of an *output*; raise DataError if that has more."""
    most = count(value, name, lines)
    if most < output:
        raise lines.error(f"{name} is {shown(value)}, and the output has {output:,} tokens; an engine ends it there")
    return most


def output_lengths(value: Any, name: str, expected: tuple[Any, int], lines: Lines) -> tuple[int, ...]:
    """Return *value*, such as 20|31, as the output tokens of each sequence of a request.

    What is *expected* is how many sequences there are, and the tokens of the longest; raises DataError for others.
    """
    parts, (number, longest) = value.split("|") if isinstance(value, str) else value, expected
    if not isinstance(parts, list):
        raise lines.error(f"{name} is {shown(value)}; expected the output tokens of each sequence, such as 20|31")
    lengths = tuple(count(part, name, lines) for part in parts)
    if str(len(lengths)) != str(number) or max(lengths) != longest:
        raise lines.error(f"{name} is {shown(value)}; expected a number for each of n sequences, and that of output for"
                          f" the longest")
    return lengths

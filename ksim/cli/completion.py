"""Completion by the shell: what each option offers, and the words that a shell asks to complete."""

import io
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any

import typer
from attrs import frozen

from ksim.cli.completers import Completer, flag, is_flag, names, number, pool, setting, several, words

#: By this variable a shell asks for completions.
ASKED = "_KSIM_COMPLETE"
#: Characters at which bash ends a word; in ours they are part of values, as in ``--set router=llm_d``.
_BREAKS = "=:"

#: What options offer, by the names of their parameters, which mean the same in all commands.
_OFFERS: Mapping[str, Completer] = {
    "model": names("models"), "gpu": several(names("gpus")), "gpus": several(names("gpus")), "system": names("systems"),
    "engine": names("engines"), "host": names("hosts"), "oracle": names("oracles"), "router": names("cluster.routers"),
    "pair_router": names("cluster.pair_routers"), "trace_format": names("workload.traces"),
    "template": names("templates"), "names": several(names("cluster.routers", "cluster.pair_routers")),
    "settings": setting, "over": setting, "space": setting, "pool": pool,
    "objective": number, "require": number, "minimize": number, "maximize": number, "subject_to": number,
    "time_unit": words("ns", "us", "ms", "s", "min", "h"), "detail": words("step", "kernel"),
    "on": words("processes", "ray"), "sampler": words("tpe", "gp", "nsga2", "random"),
    "sample": words("latin:", "random:"), "goodput": words("ttft:", "tpot:", "e2el:"),
    "slo": words(*(f"{metric}:{statistic}:" for metric in ("ttft", "tpot", "itl", "e2el", "queue")
                   for statistic in ("p50", "p90", "p95", "p99", "mean", "median"))),
    "kinds": several(words("all_reduce", "all_gather", "reduce_scatter", "all_to_all")),
    "architecture": words("turing", "ampere", "ada", "hopper", "blackwell", "blackwell-consumer"),
    "leave_out": names("gpus"), "train": several(names("gpus")), "role": words("prefill", "decode", "both"),
    "mode": words("agg", "disagg"), "statistic": words("mean", "median"),
    "families": several(words("gemm", "attention", "moe", "rms_norm", "fused_add_rms_norm", "silu_mul", "rope",
                              "kv_write", "argmax", "quantize", "copy")),
    "columns": several(words(*(f"{field}=" for field in (
        "arrival", "prompt", "output", "priority", "session", "delay", "tenant", "adapter", "hash_ids", "images",
        "acceptance", "max_tokens", "n", "prompt_logprobs", "beam_width")))),
}
#: Those that mean something else in one command, by its name.
_OFFERS_OF: Mapping[tuple[str, str], Completer] = {("model", "name"): names("models")}


@frozen
class Offer:
    """A completion, as the shells' code of typer and click takes it."""

    value: str
    help: str | None = None
    type: str = "plain"


def offer(app: typer.Typer) -> None:
    """Print what the shell may put at the end of the line that it asks about."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    command: Any = typer.main.get_command(app)
    _attach(command)
    with whole_words(os.environ):
        command(prog_name="ksim")


def _attach(command: Any, path: str = "") -> None:
    """Have the parameters of *command* and of those under it offer what they may be."""
    for parameter in command.params:
        completer = _OFFERS_OF.get((path, parameter.name)) or _OFFERS.get(parameter.name) or (
            flag(parameter.name) if is_flag(parameter.name) else None)
        if completer is not None and not getattr(parameter, "is_flag", False):
            parameter.shell_complete = partial(_offers, completer)
    for name, inner in getattr(command, "commands", {}).items():
        _attach(inner, name)


def _offers(completer: Completer, ctx: typer.Context, incomplete: str) -> list[Offer]:
    return [Offer(value) for value in completer(ctx, incomplete)]


@contextmanager
def whole_words(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Have bash's words whole for whoever completes them, and cut what is offered as bash has cut the word.

    Bash hands over ``router=llm`` as three words, and replaces the last of them alone.  Other shells ask in the same
    way, and cut no words.
    """
    if "COMP_WORDS" not in environment:
        yield
        return
    cuts = environment.get(ASKED) == "complete_bash"
    environment[ASKED] = "complete_bash"
    place = int(environment.get("COMP_CWORD", "0"))
    given = [*environment["COMP_WORDS"].split("\n"), ""][:place + 1]
    environment["COMP_WORDS"], number, before = _joined(given) if cuts else (
        "\n".join(given), len(given) - 1, "")
    environment["COMP_CWORD"] = str(number)
    offered = io.StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        lines = [line.removeprefix(before) for line in offered.getvalue().splitlines()]
        sys.stdout.write("\n".join(lines) + "\n" * bool(lines))


def _joined(words: list[str]) -> tuple[str, int, str]:
    """The words, with what bash has cut put together; the place of the last one, and its part before the last cut."""
    whole: list[str] = []
    before, cut = "", False
    for word in words:
        is_break = bool(word) and not word.strip(_BREAKS) and bool(whole)
        if is_break or cut:
            before = whole[-1] + word * is_break
            whole[-1] += word
        else:
            before = ""
            whole.append(word)
        cut = is_break
    return "\n".join(whole), len(whole) - 1, before


def is_asked() -> bool:
    """Whether a shell asks for completions."""
    return ASKED in os.environ

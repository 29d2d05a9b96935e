"""Completion by the shell: what each option offers, and the words that a shell asks to complete.

`ksim --install-completion` and `--show-completion`: the scripts by which shells ask ksim for completions.
"""

import io
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import frozen

from ksim.cli.completers import Completer, flag, is_flag, names, number, pool, setting, several, words
from ksim.cli.help import HelpGroup
from ksim.foundation.errors import ConfigError

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
    "time_unit": words("ns", "us", "ms", "s", "min", "h"), "detail": words("step", "rank"),
    "on": words("processes", "ray"), "sampler": words("tpe", "gp", "nsga2", "random"),
    "sample": words("latin:", "random:"), "goodput": words("ttft:", "tpot:", "e2el:"),
    "slo": words(*(f"{metric}:{statistic}:" for metric in ("ttft", "tpot", "itl", "e2el", "queue")
                   for statistic in ("p50", "p90", "p95", "p99", "mean", "median"))),
    "kinds": several(words("all_reduce", "all_gather", "reduce_scatter", "all_to_all")),
    "architecture": words("turing", "ampere", "ada", "hopper", "blackwell", "blackwell-consumer"),
    "role": words("prefill", "decode", "both"),
    "families": several(words("gemm", "attention", "moe", "rms_norm", "fused_add_rms_norm", "silu_mul", "rope",
                              "kv_write", "argmax", "quantize", "copy")),
    "columns": several(words(*(f"{field}=" for field in (
        "arrival", "prompt", "output", "priority", "session", "delay", "tenant", "adapter", "hash_ids", "images",
        "acceptance", "max_tokens", "n", "prompt_logprobs", "beam_width", "ignore_eos")))),
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
    cursor = int(environment.get("COMP_CWORD", "0"))
    given = [*environment["COMP_WORDS"].split("\n"), ""][:cursor + 1]
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


#: All shells ask in one way: the words of the line, a line each, and which of them is to be completed.
SCRIPTS = {
    "bash": r"""_ksim_completion() {
    local IFS=$'\n'
    COMPREPLY=( $(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _KSIM_COMPLETE=complete_bash "$1" 2>/dev/null) )
    [[ ${COMPREPLY[0]-} == *[=:.] ]] && compopt -o nospace
    return 0
}
complete -o default -F _ksim_completion ksim
""",
    "zsh": r"""(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_ksim() {
    local -a offers
    offers=("${(@f)$(COMP_WORDS="${(F)words}" COMP_CWORD=$((CURRENT - 1)) _KSIM_COMPLETE=complete_zsh $words[1] \
        2>/dev/null)}")
    offers=(${offers:#})
    if (( ! $#offers )); then
        _files
        return
    fi
    compadd -S '' -- ${(M)offers:#*[=:.]}
    compadd -- ${offers:#*[=:.]}
}
compdef _ksim ksim
""",
    "fish": r"""function __ksim_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l offers (env COMP_WORDS=(string join \n -- $words | string collect) COMP_CWORD=(math (count $words) - 1) \
        _KSIM_COMPLETE=complete_fish ksim 2>/dev/null)
    if test -n "$offers"
        printf '%s\n' $offers
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c ksim -f -a '(__ksim_complete)'
""",
}
#: The file that a shell reads when it starts; fish reads a script by the name of the command.
_STARTS = {"bash": ".bashrc", "zsh": ".zshrc"}
_FLAGS = ("--install-completion", "--show-completion")


class MainGroup(HelpGroup):
    """`ksim`, whose flags about completion need no name of a shell, and whose `--trust` may stand anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args* with the shells that the flags lack, those of the environment, and with `--trust` in front."""
        ours = args[:args.index("--")] if "--" in args else args
        if "--trust" in ours:
            args = ["--trust", *(word for word in ours if word != "--trust"), *args[len(ours):]]
        cursor = next((args.index(flag) + 1 for flag in _FLAGS if flag in args[:1]), None)
        if cursor is not None and args[cursor:cursor + 1] in ([], ["-h"], ["--help"]):
            args = [*args[:cursor], Path(os.environ.get("SHELL", "")).name or "?", *args[cursor:]]
        return super().parse_args(ctx, args)


def script_of(shell: str) -> str:
    """The script for *shell*; raises ConfigError for a shell without one."""
    if shell not in SCRIPTS:
        raise ConfigError("completion", f"there is none for the shell {shell!r}; name bash, zsh or fish, such as"
                                        f" ksim --install-completion bash")
    return SCRIPTS[shell]


def script_path(shell: str, home: Path | None = None) -> Path:
    """Where the script for *shell* is installed in *home*, by default the user's."""
    home = home or Path.home()
    if shell == "fish":
        return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "ksim.fish"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "ksim" / f"completion.{shell}"


def install(shell: str) -> str:
    """Install the script for *shell*, and say what was written; raises ConfigError where it cannot be written."""
    text, path = script_of(shell), script_path(shell)
    message = f"wrote {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if shell in _STARTS and _sourced(Path.home() / _STARTS[shell], path):
            message += f", and a line in ~/{_STARTS[shell]} that reads it"
    except OSError as error:
        raise ConfigError(str(error.filename or path), f"cannot be written: {error.strerror}") from None
    return f"{message}; open a new terminal, and try: ksim run --set <Tab>"


def _sourced(start: Path, script: Path) -> bool:
    """Have the file *start* read *script*; whether it did not yet."""
    line = f"source '{script}'"
    text = start.read_text(encoding="utf-8", errors="surrogateescape") if start.exists() else ""
    if line in text.splitlines():
        return False
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    start.write_text(f"{ended}{line}\n", encoding="utf-8", errors="surrogateescape")
    return True


def _install(ctx: typer.Context, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        print(install(shell))
        raise typer.Exit


def _show(ctx: typer.Context, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        print(script_of(shell), end="")
        raise typer.Exit


InstallCompletion = Annotated[str | None, typer.Option("--install-completion", metavar="[bash|zsh|fish]",
                                                       callback=_install, is_eager=True, help="have the shell complete"
                                                       " commands, options and values of ksim; by default the login"
                                                       " shell")]
ShowCompletion = Annotated[str | None, typer.Option("--show-completion", metavar="[bash|zsh|fish]", callback=_show,
                                                    is_eager=True, help="print the script by which the shell does so")]

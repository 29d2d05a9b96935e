"""`ksim --install-completion` and `--show-completion`: the scripts by which shells ask ksim for completions."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ksim.cli.help import Group
from ksim.foundation.errors import ConfigError

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


class MainGroup(Group):
    """`ksim`, whose flags about completion need no name of a shell."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args* with the shells that the flags lack: those of the environment."""
        place = next((args.index(flag) + 1 for flag in _FLAGS if flag in args[:1]), None)
        if place is not None and args[place:place + 1] in ([], ["-h"], ["--help"]):
            args = [*args[:place], Path(os.environ.get("SHELL", "")).name or "?", *args[place:]]
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
    said = f"wrote {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if shell in _STARTS and _sourced(Path.home() / _STARTS[shell], path):
            said += f", and a line in ~/{_STARTS[shell]} that reads it"
    except OSError as error:
        raise ConfigError(str(error.filename or path), f"cannot be written: {error.strerror}") from None
    return f"{said}; open a new terminal, and try: ksim run --set <Tab>"


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

"""Lines of a shell: `vllm serve`, `python -m sglang.launch_server`, `trtllm-serve`, as they are or in containers."""

import re

from attrs import evolve

from ksim.deploy.commands import MENTIONS, Command, launch_of, program_of, runtime_at, script_place, unwrapped
from ksim.deploy.engines.launching import tag_of
from ksim.deploy.launches import Deployed, Launch, Wanted
from ksim.deploy.proxies import Proxy, proxy_of, with_proxies
from ksim.deploy.shell.script import Script, Simple
from ksim.deploy.texts import Pasted
from ksim.deploy.workload import Bench, bench_beside
from ksim.foundation.errors import ConfigError

__all__ = ["Lines"]


_AGAIN = "runs the whole text again; paste the line that starts the engine"


class Lines:
    """Takes the simple commands of a script apart, and starts those that are engines."""

    def recognises(self, pasted: Pasted) -> bool:
        """Whether some command starts an engine; also for what may have been meant as one."""
        return any(_is_engine(line.split()) for line in pasted.text.replace("\\\n", " ").split("\n")) or any(
            word in pasted.text for word in ("vllm", "sglang", "trtllm"))

    def read(self, pasted: Pasted, wanted: Wanted) -> Deployed:
        """The engines that the script starts, and the proxies before them."""
        files: dict[str, str] = {}
        launches: list[Launch] = []
        proxies: list[Proxy] = []
        for simple in Script(pasted, wanted.environment).commands():
            simple.keep_document(files)
            command = _command(simple, pasted, files)
            inner = _script_of(command)
            if inner is not None and inner.strip() == pasted.text.strip():
                raise ConfigError(command.where, next((word.unknown for word in command.words if word.unknown), _AGAIN))
            if inner is not None:
                simple.check_unconditional(command.where)
                # Lines before it keep the numbers of its own.
                text = "\n" * (simple.line - 1) + inner
                further = self.read(evolve(pasted, text=text), _with_environment(wanted, command))
                launches += [evolve(launch, idle=(*unwrapped(command).idle, *launch.idle))
                             for launch in further.launches]
            elif (proxy := proxy_of(command)) is not None:
                proxies.append(proxy)
            elif _is_engine([word.text for word in simple.words]):
                launches.append(_launched(command, simple, wanted))
        if not launches:
            raise ConfigError(pasted.source or "the text", _no_engine(pasted.text))
        load = Bench() if wanted.bench else bench_beside(pasted, wanted)
        return with_proxies(Deployed(tuple(launches), load.scenario, tuple(load.idle), tuple(load.remarks)), proxies)


def _no_engine(text: str) -> str:
    """Why a text that mentions an engine starts none."""
    if any(client in text for client in ("bench serve", "bench_serving", "benchmark_serving")):
        return "is the line of a client: give it with --bench, and the line that starts the engine as the text"
    said = next((line.strip() for line in text.split("\n") if re.search("vllm|sglang|trtllm", line)), "")
    comment = " (a comment, to a shell)" if said.startswith("#") else ""
    return (f"{said[:60]!r}{comment} starts no engine; expected `vllm serve MODEL ...`, `python -m sglang.launch_server"
            f" ...` or `trtllm-serve MODEL ...`")


def _script_of(command: Command) -> str | None:
    """The text of `bash -c TEXT`, of `ssh HOST TEXT` or `tmux send-keys TEXT`, in a container or not, if it starts an
    engine.
    """
    words = [word.text for word in unwrapped(command).command.words]
    if words[:1] and words[0] in MENTIONS:
        return None
    shell, started = script_place(words), _is_engine(words)
    return next((text for place, text in enumerate(words) if re.search(r"\s", text) and (place == shell or not started)
                 and any(_is_engine(line.split()) for line in _simple_lines(text))), None)


def _simple_lines(text: str) -> list[str]:
    return re.split(r"\n|&&|;|\|\|", text.replace("\\\n", " "))


def _with_environment(wanted: Wanted, command: Command) -> Wanted:
    """*wanted* with the variables that a container gives to its script."""
    inner = unwrapped(command).command
    given = {name: word.text for name, word in inner.environment.items()}
    return evolve(wanted, environment={**wanted.environment, **given},
                  version=wanted.version or (tag_of(inner.image.text) if inner.image else None))


def _command(simple: Simple, pasted: Pasted, files: dict[str, str]) -> Command:
    return Command(simple.words, pasted.at(simple.line), {**simple.exported, **simple.assigned}, files=dict(files),
                   folder=pasted.folder)


def _launched(command: Command, simple: Simple, wanted: Wanted) -> Launch:
    simple.check_unconditional(command.where)
    contained = unwrapped(command)
    launch = launch_of(contained.command, wanted)
    return evolve(launch, idle=(*contained.idle, *launch.idle))


def _is_engine(names: list[str]) -> bool:
    """Whether a command of these words starts an engine, as far as can be told before variables are filled in."""
    if (start := runtime_at(names)) is not None:
        signs = ("vllm", "sglang", "tensorrt", "trtllm")
        return any(sign in name for name in names[start:] for sign in signs)
    return program_of(Command.of(names, "")) is not None

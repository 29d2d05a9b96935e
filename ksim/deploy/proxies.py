"""Lines that start a router or a proxy before engines, and files of flags such as `--config serve.yaml`.

A proxy's line says which engines prefill, which decode, and who is chosen.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ksim.deploy.commands import Deployed, EngineLaunch, Note, ShellCommand, Word, behind
from ksim.deploy.shell.script import CONDITIONAL
from ksim.deploy.texts import Entry, Pasted, documents
from ksim.foundation.errors import ConfigError, DataError


def with_config_file(command: ShellCommand, words: Sequence[Word], flag: str = "--config") -> list[Word]:
    """*words* with those of the file that *flag* names before them, as flags of the line come last and count.

    Raises ConfigError for a file that is not there, or is no table.
    """
    for index, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name == flag:
            path = evolve(word, text=value) if equals else (*words[index + 1:index + 2], Word("", word.where))[0]
            rest = [*words[:index], *words[index + (1 if equals else 2):]]
            first = [rest.pop(0)] if rest and not rest[0].text.startswith("-") else []
            return [*first, *_words(keys_in(command, path.known(), flag)), *rest]
    return [*words]


def keys_in(command: ShellCommand, path: Word, flag: str) -> Mapping[str, Entry]:
    """The keys of a YAML file that the text writes, or that lies beside it.

    Raises ConfigError for a file that is not there, or holds no keys and values, and DataError for one that is no YAML.
    """
    read = documents(Pasted(_text(command, path, flag), path.text))
    if len(read) > 1:
        raise read[1].error(f"is a second document; a file for {flag} has one")
    return read[0].table if read else {}


def _text(command: ShellCommand, path: Word, flag: str) -> str:
    if not path.text:
        raise ConfigError(path.where, f"{flag} names no file")
    for name, text in command.files.items():
        if Path(name).name == Path(path.text).name:
            return _unconditional(text, path)
    try:
        return Pasted.of_file(command.folder / path.text).text
    except DataError as error:
        raise ConfigError(path.where, f"{flag} {path.text}: {error.args[1]}; it is read from the folder of the text, or"
                                      f" from a here-document in it") from None


def _unconditional(text: str, path: Word) -> str:
    if not text.startswith(CONDITIONAL):
        return text
    word = text.removeprefix(CONDITIONAL)
    raise ConfigError(path.where, f"{path.text} is written under `{word}`, and whether it is, is what a shell would"
                                  f" have to find out; paste what runs, without the condition")


def _words(keys: Mapping[str, Entry]) -> Iterator[Word]:
    """The flags that the keys of a file are, as words."""
    for key, value in keys.items():
        yield from flag_words(key, value)


def flag_words(key: str, value: Entry, false: str = "no-") -> list[Word]:
    """The flag that a *key* of YAML stands for; that of a false one begins with *false*, or is left out."""
    if value.plain is False and not false:
        return []
    return [Word(text, value.place) for text in _flag(key, value.plain, false)]


def _flag(key: str, value: Any, false: str) -> list[str]:
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        return [name] if value else [f"--{false}{name[2:]}"]
    if isinstance(value, dict):
        return [name, _json(value)]
    if isinstance(value, list):
        return [name, *(_json(part) if isinstance(part, dict) else str(part) for part in value)] if value else []
    return [] if value is None else [f"{name}={value}"]


def _json(value: dict[Any, Any]) -> str:
    """*value* in JSON; what YAML has beyond that, such as dates, becomes a text."""
    return json.dumps({str(key): each for key, each in value.items()}, default=str)


#: Programs and modules that are routers, as the last part of their names.
_ROUTERS = ("sglang_router.launch_router", "sglang-router", "sglang_router", "vllm-router", "vllm_router", "smg",
            "sglang::router")
_PROXY = re.compile(r"(?:toy_proxy_server|disagg_proxy\w*|disagg_prefill_proxy\w*|proxy_server|load_balance_proxy\w*)"
                    r"\.py$")
#: Their policies by the name of ksim's router.
_POLICIES = {"cache_aware": "sglang_cache_aware", "round_robin": "round_robin", "random": "random",
             "power_of_two": "power_of_two", "consistent_hash": "consistent_hash"}
_TUNED = {"--cache-threshold": "cache_threshold", "--balance-abs-threshold": "balance_abs_threshold",
          "--balance-rel-threshold": "balance_rel_threshold", "--eviction-interval-secs": "eviction_interval_secs",
          "--eviction-interval": "eviction_interval_secs", "--max-tree-size": "max_tree_size"}
_SIDES = {"--prefill": "prefill", "--decode": "decode", "--prefiller-ports": "prefill", "--decoder-ports": "decode",
          "--prefiller-port": "prefill", "--decoder-port": "decode"}
_PORT = re.compile(r"(\d+)/?$")


@frozen
class Proxy:
    """A router's line: the `ports` of the engines of each role, and keys of the scenario."""

    where: str
    ports: Mapping[int, str] = field(factory=dict)
    scenario: Mapping[str, Any] = field(factory=dict)
    idle: tuple[Note, ...] = ()


def proxy_of(command: ShellCommand) -> Proxy | None:
    """The router that *command* starts, or None; raises ConfigError for a policy that ksim does not have."""
    words = behind(command.words, (("trtllm-serve", "disaggregated"),))
    if words is not None:
        return _of_trtllm(command, words)
    for index, word in enumerate(command.words[:4]):
        if word.text.rpartition("/")[2] in _ROUTERS or _PROXY.search(word.text):
            return _read(command, command.words[index + 1:])
    return None


def _read(command: ShellCommand, words: Sequence[Word]) -> Proxy:
    ports: dict[int, str] = {}
    policies: dict[str, Word] = {}
    options: dict[str, Any] = {}
    idle = []
    for flag, values in _flags(words):
        if flag.text in _SIDES:
            ports |= {int(match[1]): _SIDES[flag.text] for word in values if (match := _PORT.search(word.text))}
        elif flag.text in ("--policy", "--prefill-policy", "--decode-policy") and values:
            policies[flag.text] = values[0]
        elif flag.text in _TUNED and values:
            options[_TUNED[flag.text]] = _number(values[0])
        else:
            idle.append(Note(flag.where, " ".join(word.text for word in (flag, *values)),
                             "a router's addresses, checks and logs change no schedule"))
    return Proxy(command.where, ports, _routed(policies, options), tuple(idle))


def _of_trtllm(command: ShellCommand, words: Sequence[Word]) -> Proxy:
    """The servers that the file of `trtllm-serve disaggregated -c FILE` lists."""
    path = next((value for flag, value in pairwise(words) if flag.text in ("-c", "--config_file")), None)
    if path is None:
        raise ConfigError(command.where, "trtllm-serve disaggregated names no file; say it with -c")
    keys = keys_in(command, path, "-c")
    ports: dict[int, str] = {}
    for key, role in (("context_servers", "prefill"), ("generation_servers", "decode")):
        urls = keys[key].each("urls") if key in keys else []
        ports |= {int(match[1]): role for url in urls if (match := _PORT.search(url.text))}
    return Proxy(command.where, ports)


def _flags(words: Sequence[Word]) -> list[tuple[Word, list[Word]]]:
    """Each flag with the words behind it."""
    flags: list[tuple[Word, list[Word]]] = []
    for word in words:
        if word.text.startswith("--"):
            name, equals, value = word.text.partition("=")
            flags.append((Word(name.replace("_", "-"), word.where), [Word(value, word.where)] if equals else []))
        elif flags:
            flags[-1][1].append(word)
    return flags


def _number(word: Word) -> float | int:
    try:
        return int(word.text) if word.text.isdecimal() else float(word.text)
    except ValueError:
        raise ConfigError(word.where, f"expected a number, not {word.text!r}") from None


def _routed(policies: Mapping[str, Word], options: Mapping[str, Any]) -> dict[str, Any]:
    routers = {flag: _policy(word, options) for flag, word in policies.items()}
    whole = routers.get("--policy")
    sides = {side: router for side in ("prefill", "decode")
             if (router := routers.get(f"--{side}-policy", whole)) is not None}
    return {**({"router": whole} if whole is not None else {}),
            **({"pair_router": {"name": "each_side", **sides}} if sides else {})}


def _policy(word: Word, options: Mapping[str, Any]) -> Any:
    name = _POLICIES.get(word.text)
    if name is None:
        raise ConfigError(word.where, f"policy {word.text!r} is none that ksim has; it has {', '.join(_POLICIES)}")
    return {"name": name, **options} if name == "sglang_cache_aware" and options else name


def with_proxies(deployed: Deployed, proxies: Sequence[Proxy]) -> Deployed:
    """*deployed* behind *proxies*: they say the roles of engines whose own lines do not."""
    roles = {port: role for proxy in proxies for port, role in proxy.ports.items()}
    launches = tuple(evolve(launch, role=_role(launch, roles) or launch.role) for launch in deployed.launches)
    splits = any(launch.role in ("prefill", "decode") for launch in launches)
    scenario = dict(deployed.scenario)
    for proxy in proxies:
        scenario |= {key: value for key, value in proxy.scenario.items() if (key == "pair_router") == splits}
    return evolve(deployed, launches=launches, scenario=scenario,
                  idle=(*deployed.idle, *(note for proxy in proxies for note in proxy.idle)))


def _role(launch: EngineLaunch, roles: Mapping[int, str]) -> str:
    return next((roles[port] for port in launch.ports if port in roles), "")

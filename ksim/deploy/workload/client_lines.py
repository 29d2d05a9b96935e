"""The lines of benchmark clients, as workloads: `vllm bench serve`, `python -m sglang.bench_serving`."""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, evolve, field

from ksim.deploy.commands.command import Command, Word, behind
from ksim.deploy.flags.given import Given, Parser, value_of, where_of
from ksim.deploy.flags.meaning import is_default, shown
from ksim.deploy.flags.table import flag_table
from ksim.deploy.launches import Note, Wanted
from ksim.deploy.shell.script import Script
from ksim.deploy.texts.pasted import Pasted
from ksim.deploy.texts.tidied import tidied
from ksim.deploy.workload.datasets import DATASETS, Client
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import quantity

_CLIENTS: Sequence[tuple[tuple[str, ...], str, str]] = (
    (("vllm", "bench", "serve"), "vllm-bench", "vllm bench serve"),
    (("-m", "sglang.bench_serving"), "sglang-bench", "sglang.bench_serving"),
    (("bench_serving.py",), "sglang-bench", "bench_serving.py"),
    (("benchmark_serving.py",), "vllm-bench", "benchmark_serving.py"))
#: Flags that would need what ksim does not simulate.
_REFUSED = {"use_beam_search": "say beam_width in [workload.synthetic] instead",
            "ramp_up_strategy": "rates that rise are not simulated",
            "random_batch_size": "batched prompts are not simulated",
            "probe_request_rate": "probes beside the load are not simulated",
            "gsp_num_turns": "say sessions in [workload.synthetic] instead"}
_IDLE = "what the client prints, saves and sends beside lengths and times"


@define
class Bench:
    """What a client's line says: a workload, latency targets and a seed, with notes on the rest."""

    scenario: dict[str, Any] = field(factory=dict)
    idle: list[Note] = field(factory=list)
    remarks: list[Note] = field(factory=list)


def bench_of(text: str, wanted: Wanted) -> Bench:
    """The workload of the line, or of the file with the line, *text*.

    Raises ConfigError for a line of no client that is known, and for what cannot be simulated.
    """
    for command, table, name, words in _clients(Pasted.of_argument(text), wanted, "--bench, "):
        return _read(command, table, name, words)
    raise ConfigError("--bench", f"{text.strip()[:60]!r} starts no client that ksim knows; expected `vllm bench serve"
                                 f" ...` or `python -m sglang.bench_serving ...`")


def bench_beside(pasted: Pasted, wanted: Wanted) -> Bench:
    """The workload of a client that the script *pasted* runs beside its engines; an empty one if it runs none.

    A script that runs several loads, or one that cannot be read, gets a remark instead.
    """
    if not any(start[-1] in pasted.text for start, _, _ in _CLIENTS):
        return Bench()
    try:
        loads = [_read(command, table, name, words) for command, table, name, words in _clients(pasted, wanted)]
    except ConfigError as error:
        return Bench(remarks=[Note("", "the client's line", f"not taken as the workload: {error}")])
    if len(loads) > 1:
        return Bench(remarks=[Note("", f"the {len(loads)} lines of clients", "not taken as the workload: give one of"
                                   " them with --bench")])
    return loads[0] if loads else Bench()


def _clients(pasted: Pasted, wanted: Wanted,
             before: str = "") -> Iterator[tuple[Command, str, str, list[Word]]]:
    """The commands of a script that start clients; *before* goes before their places in messages."""
    script = Script(evolve(pasted, text=tidied(pasted.text)), wanted.environment)
    for simple in script.commands():
        command = Command(tuple(evolve(word, where=f"{before}{word.where}") for word in simple.words),
                          f"{before}{pasted.at(simple.line)}", folder=pasted.folder)
        if (client := _client(command)) is not None:
            yield command, *client


def _client(command: Command) -> tuple[str, str, list[Word]] | None:
    for start, table, name in _CLIENTS:
        if (words := behind(command.words, (start,))) is not None:
            return table, name, words
    return None


def _read(command: Command, table: str, name: str, words: Sequence[Word]) -> Bench:
    parser = Parser(flag_table(table, name))
    given = parser.read(words)
    if parser.positionals:
        raise ConfigError(parser.positionals[0].where, f"{parser.positionals[0].text!r} belongs to no flag")
    client = Client(name, given, command.folder)
    made = Bench()
    used = {"num_prompts", "request_rate", "burstiness", "max_concurrency", "dataset_name", "goodput", "seed"}
    dataset = value_of(given, "dataset_name", "random" if table == "vllm-bench" else "sharegpt")
    if dataset not in DATASETS:
        raise ConfigError(command.where, f"--dataset-name {dataset} is not simulated; ksim has {', '.join(DATASETS)}")
    workload = DATASETS[dataset](client)
    _check(given)
    made.scenario["workload"] = {**workload, **_limits(given)}
    if goodput := value_of(given, "goodput"):
        made.scenario["slo"] = _targets(goodput, where_of(given, "goodput"))
    if (seed := value_of(given, "seed")) is not None:
        made.scenario["seed"] = seed
    made.remarks += [Note("--bench", what, why) for what, why in client.remarks]
    made.idle += [Note(one.where, shown(one.said), _IDLE) for one in given if one.dest not in used | client.used]
    return made


def _check(given: Sequence[Given]) -> None:
    for one in given:
        if one.dest in _REFUSED and not is_default(one) and (one.value is True or one.value != 1):
            raise ConfigError(one.where, f"{one.said}: {_REFUSED[one.dest]}")


def _limits(given: Sequence[Given]) -> dict[str, Any]:
    most = value_of(given, "max_concurrency")
    return {"max_concurrency": most} if most else {}


def _targets(pairs: Sequence[str], where: str) -> dict[str, str]:
    """Latency targets as `--goodput ttft:500` writes them, in milliseconds."""
    targets = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            quantity(f"{value} ms")
        except ValueError:
            value = ""
        if name not in ("ttft", "tpot", "e2el") or not value:
            raise ConfigError(where, f"--goodput: expected ttft:MS, tpot:MS or e2el:MS, not {pair!r}")
        targets[name] = f"{value} ms"
    return targets



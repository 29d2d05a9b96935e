"""The workload of an imported scenario: that of a benchmark client's line, or one that is made up and says so."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from ksim.deploy.commands import ImportOptions, Note, ShellCommand, Word, behind
from ksim.deploy.flags.given import Given, Parser, flag_table, value_of, where_of
from ksim.deploy.flags.meaning import is_default, shown
from ksim.deploy.shell.script import Script
from ksim.deploy.texts import Pasted, tidied
from ksim.foundation.errors import ConfigError
from ksim.foundation.files import is_there
from ksim.foundation.units import quantity

#: What stands for traffic of which nothing is known.
MADE_UP: Mapping[str, Any] = {
    "count": 200,
    "arrivals": {"process": "poisson", "rate": 4.0},
    "prompt": {"kind": "lognormal", "median": 600, "sigma": 0.9},
    "output": {"kind": "lognormal", "median": 150, "sigma": 0.8},
    "max_tokens": 8192,
}
_WHY = ("MADE UP: a launch line says nothing of the traffic; put your own in its place, such as a trace"
        " ([workload.replay]), or give the client's line with --bench")


def made_up(most: int | None) -> tuple[dict[str, Any], Note]:
    """A workload whose requests have at most *most* tokens, and the note that nobody said so."""
    load = {**MADE_UP, "max_tokens": min(MADE_UP["max_tokens"], most or MADE_UP["max_tokens"])}
    return {"workload": {"synthetic": load}}, Note("", "workload", _WHY)


@define
class BenchClient:
    """A client's flags, which of them were `used`, and `remarks`: what, and why it differs."""

    name: str
    given: Sequence[Given]
    folder: Path
    used: set[str] = field(factory=set)
    remarks: list[tuple[str, str]] = field(factory=list)

    def value(self, dest: str, default: Any = None) -> Any:
        """The value of a flag, which is used then."""
        self.used.add(dest)
        return value_of(self.given, dest, default)

    def where(self, dest: str) -> str:
        return where_of(self.given, dest, "--bench")

    @property
    def is_vllm(self) -> bool:
        return self.name == "vllm bench serve"


def _synthetic(client: BenchClient, prompt: Any, output: Any, **more: Any) -> dict[str, Any]:
    load = {"count": client.value("num_prompts", 1000), "arrivals": _arrivals(client), "prompt": prompt,
            "output": output, **more}
    return {"synthetic": load}


def _arrivals(client: BenchClient) -> dict[str, Any]:
    rate, burstiness = client.value("request_rate", inf), client.value("burstiness", 1.0)
    if rate == inf:
        return {"process": "burst"}
    exact = {"exact": True} if client.is_vllm else {}
    if burstiness != 1.0:
        return {"process": "gamma", "rate": rate, "burstiness": burstiness, **exact}
    return {"process": "poisson", "rate": rate, **exact}


def _fixed(length: int) -> dict[str, Any]:
    return {"kind": "fixed", "value": length}


def _spread(client: BenchClient, length: int, ratio: float) -> dict[str, Any]:
    """Lengths around *length*: vLLM's from 1 - ratio to 1 + ratio times as many, those of others from ratio times."""
    low, high = ((floor(length * (1 - ratio)), ceil(length * (1 + ratio))) if client.is_vllm else
                 (int(length * ratio), length))
    return _fixed(length) if low == high else {"kind": "uniform", "low": max(1, low), "high": high}


def _ratios(client: BenchClient) -> tuple[float, float]:
    """The range ratios of prompts and of outputs."""
    said = client.value("random_range_ratio", 0.0)
    try:
        table = json.loads(said) if isinstance(said, str) else said
        pair = (table["input"], table["output"]) if isinstance(table, Mapping) else (table, table)
        ratios = float(pair[0]), float(pair[1])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(client.where("random_range_ratio"), f"--random-range-ratio: expected a number or"
                                                              f" {{\"input\": ..., \"output\": ...}}, not {said!r}"
                          ) from None
    if not all(0 <= ratio <= 1 for ratio in ratios):
        raise ConfigError(client.where("random_range_ratio"), f"--random-range-ratio {said}: must be from 0 to 1")
    return ratios


def _random(client: BenchClient) -> dict[str, Any]:
    into, out = _ratios(client)
    prompt = client.value("input_len") or client.value("random_input_len", 1024)
    output = client.value("output_len") or client.value("random_output_len", 128 if client.is_vllm else 1024)
    prefix = client.value("random_prefix_len", 0)
    shared = {"prefixes": {"groups": 1, "tokens": prefix}} if prefix else {}
    return _synthetic(client, _spread(client, prompt, into), _spread(client, output, out), **shared)


def _random_images(client: BenchClient) -> dict[str, Any]:
    images: dict[str, Any] = {"base_items_per_request": client.value("random_mm_base_items_per_request", 1)}
    if ratio := client.value("random_mm_num_mm_items_range_ratio", 0.0):
        images["num_mm_items_range_ratio"] = ratio
    if buckets := client.value("random_mm_bucket_config"):
        table = json.loads(buckets) if isinstance(buckets, str) and buckets.lstrip().startswith('{"') else None
        if table is None:
            raise ConfigError(client.where("random_mm_bucket_config"), "--random-mm-bucket-config: expected JSON such"
                                                                       " as {\"(256, 256, 1)\": 1.0}")
        images["bucket_config"] = table
    load = _random(client)
    return {"synthetic": {**load["synthetic"], "images": images}}


def _repeated(client: BenchClient) -> dict[str, Any]:
    prefixes = {"groups": client.value("prefix_repetition_num_prefixes", 10),
                "tokens": client.value("prefix_repetition_prefix_len", 256)}
    return _synthetic(client, _fixed(client.value("prefix_repetition_suffix_len", 256)),
                      _fixed(client.value("prefix_repetition_output_len", 128)), prefixes=prefixes)


def _groups(client: BenchClient) -> dict[str, Any]:
    """SGLang's generated-shared-prefix."""
    groups = client.value("gsp_num_groups", 64)
    prefixes = {"groups": groups, "tokens": client.value("gsp_system_prompt_len", 2048)}
    lengths = (_fixed(client.value(f"gsp_{part}_len", usual)) for part, usual in (("question", 128), ("output", 256)))
    load = _synthetic(client, *lengths, prefixes=prefixes)
    return {"synthetic": {**load["synthetic"], "count": groups * client.value("gsp_prompts_per_group", 16)}}


def _file(client: BenchClient) -> str:
    """The dataset's file, if it is here; empty if not."""
    path = client.value("dataset_path")
    return str(client.folder / path) if path and is_there(client.folder / path) else ""


def _recorded(name: str, own_times: bool) -> Callable[[BenchClient], dict[str, Any]]:
    """A dataset that ksim reads as a trace of format *name*; without its file, lengths are made up, and say so."""

    def read(client: BenchClient) -> dict[str, Any]:
        path = _file(client)
        if not path:
            why = ("MADE UP: the dataset's file is not here, so its lengths are not known; those of a chat service"
                   " stand for them")
            client.remarks.append((f"--dataset-name {client.value('dataset_name')}", why))
            return _synthetic(client, MADE_UP["prompt"], MADE_UP["output"], max_tokens=MADE_UP["max_tokens"])
        rate = client.value("request_rate", inf)
        if not own_times and rate == inf:
            return _synthetic(client, *({"kind": "trace", "path": path, "format": name} for _ in range(2)))
        return {"replay": {"path": path, "format": name, "limit": client.value("num_prompts", 1000),
                           **({} if own_times else {"rate": rate})}}

    return read


DATASETS: Mapping[str, Callable[[BenchClient], dict[str, Any]]] = {
    "random": _random, "random-ids": _random, "random-mm": _random_images, "prefix_repetition": _repeated,
    "generated-shared-prefix": _groups, "sharegpt": _recorded("sharegpt", False), "custom": _recorded("", False),
    "burstgpt": _recorded("burstgpt", False), "timed_trace": _recorded("mooncake", True),
    "mooncake": _recorded("mooncake", True)}


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


def bench_of(text: str, wanted: ImportOptions) -> Bench:
    """The workload of the line, or of the file with the line, *text*.

    Raises ConfigError for a line of no client that is known, and for what cannot be simulated.
    """
    for command, table, name, words in _clients(Pasted.of_argument(text), wanted, "--bench, "):
        return _read(command, table, name, words)
    raise ConfigError("--bench", f"{text.strip()[:60]!r} starts no client that ksim knows; expected `vllm bench serve"
                                 f" ...` or `python -m sglang.bench_serving ...`")


def bench_beside(pasted: Pasted, wanted: ImportOptions) -> Bench:
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


def _clients(pasted: Pasted, wanted: ImportOptions,
             before: str = "") -> Iterator[tuple[ShellCommand, str, str, list[Word]]]:
    """The commands of a script that start clients; *before* goes before their places in messages."""
    script = Script(evolve(pasted, text=tidied(pasted.text)), wanted.environment)
    for simple in script.commands():
        command = ShellCommand(tuple(evolve(word, where=f"{before}{word.where}") for word in simple.words),
                               f"{before}{pasted.at(simple.line)}", folder=pasted.folder)
        if (client := _client(command)) is not None:
            yield command, *client


def _client(command: ShellCommand) -> tuple[str, str, list[Word]] | None:
    for start, table, name in _CLIENTS:
        if (words := behind(command.words, (start,))) is not None:
            return table, name, words
    return None


def _read(command: ShellCommand, table: str, name: str, words: Sequence[Word]) -> Bench:
    parser = Parser(flag_table(table, name))
    given = parser.read(words)
    if parser.positionals:
        raise ConfigError(parser.positionals[0].where, f"{parser.positionals[0].text!r} belongs to no flag")
    client = BenchClient(name, given, command.folder)
    made = Bench()
    used = {"num_prompts", "request_rate", "burstiness", "max_concurrency", "dataset_name", "goodput", "seed"}
    dataset = value_of(given, "dataset_name", "random" if table == "vllm-bench" else "sharegpt")
    if dataset not in DATASETS:
        raise ConfigError(command.where, f"--dataset-name {dataset} is not simulated; ksim has {', '.join(DATASETS)}")
    workload = _ending(DATASETS[dataset](client), client)
    _check(given)
    made.scenario["workload"] = {**workload, **_limits(given)}
    if goodput := value_of(given, "goodput"):
        made.scenario["slo"] = _targets(goodput, where_of(given, "goodput"))
    if (seed := value_of(given, "seed")) is not None:
        made.scenario["seed"] = seed
    made.remarks += [Note("--bench", what, why) for what, why in client.remarks]
    made.idle += [Note(one.where, shown(one.said), _IDLE) for one in given if one.dest not in used | client.used]
    return made


def _ending(workload: Mapping[str, Any], client: BenchClient) -> dict[str, Any]:
    """*workload* with whether stop tokens may end outputs: by default not those of SGLang's client."""
    of_sglang = client.name in ("sglang.bench_serving", "bench_serving.py")
    ignores = not client.value("disable_ignore_eos", False) if of_sglang else client.value("ignore_eos", False)
    return {kind: {**table, "ignore_eos": True} for kind, table in workload.items()} if ignores else {**workload}


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

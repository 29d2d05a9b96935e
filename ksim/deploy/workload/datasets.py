"""The datasets of benchmark clients, as workloads of a scenario."""

import json
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

from attrs import define, field

from ksim.deploy.flags.given import Given, value_of, where_of
from ksim.deploy.workload.made_up import MADE_UP
from ksim.foundation.errors import ConfigError
from ksim.foundation.files import is_there


@define
class Client:
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


def _synthetic(client: Client, prompt: Any, output: Any, **more: Any) -> dict[str, Any]:
    load = {"count": client.value("num_prompts", 1000), "arrivals": _arrivals(client), "prompt": prompt,
            "output": output, **more}
    return {"synthetic": load}


def _arrivals(client: Client) -> dict[str, Any]:
    rate, burstiness = client.value("request_rate", inf), client.value("burstiness", 1.0)
    if rate == inf:
        return {"process": "burst"}
    exact = {"exact": True} if client.is_vllm else {}
    if burstiness != 1.0:
        return {"process": "gamma", "rate": rate, "burstiness": burstiness, **exact}
    return {"process": "poisson", "rate": rate, **exact}


def _fixed(length: int) -> dict[str, Any]:
    return {"kind": "fixed", "value": length}


def _spread(client: Client, length: int, ratio: float) -> dict[str, Any]:
    """Lengths around *length*: vLLM's from 1 - ratio to 1 + ratio times as many, those of others from ratio times."""
    low, high = ((floor(length * (1 - ratio)), ceil(length * (1 + ratio))) if client.is_vllm else
                 (int(length * ratio), length))
    return _fixed(length) if low == high else {"kind": "uniform", "low": max(1, low), "high": high}


def _ratios(client: Client) -> tuple[float, float]:
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


def _random(client: Client) -> dict[str, Any]:
    into, out = _ratios(client)
    prompt = client.value("input_len") or client.value("random_input_len", 1024)
    output = client.value("output_len") or client.value("random_output_len", 128 if client.is_vllm else 1024)
    prefix = client.value("random_prefix_len", 0)
    shared = {"prefixes": {"groups": 1, "tokens": prefix}} if prefix else {}
    return _synthetic(client, _spread(client, prompt, into), _spread(client, output, out), **shared)


def _random_images(client: Client) -> dict[str, Any]:
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


def _repeated(client: Client) -> dict[str, Any]:
    prefixes = {"groups": client.value("prefix_repetition_num_prefixes", 10),
                "tokens": client.value("prefix_repetition_prefix_len", 256)}
    return _synthetic(client, _fixed(client.value("prefix_repetition_suffix_len", 256)),
                      _fixed(client.value("prefix_repetition_output_len", 128)), prefixes=prefixes)


def _groups(client: Client) -> dict[str, Any]:
    """SGLang's generated-shared-prefix."""
    groups = client.value("gsp_num_groups", 64)
    prefixes = {"groups": groups, "tokens": client.value("gsp_system_prompt_len", 2048)}
    lengths = (_fixed(client.value(f"gsp_{part}_len", usual)) for part, usual in (("question", 128), ("output", 256)))
    load = _synthetic(client, *lengths, prefixes=prefixes)
    return {"synthetic": {**load["synthetic"], "count": groups * client.value("gsp_prompts_per_group", 16)}}


def _file(client: Client) -> str:
    """The dataset's file, if it is here; empty if not."""
    path = client.value("dataset_path")
    return str(client.folder / path) if path and is_there(client.folder / path) else ""


def _recorded(name: str, own_times: bool) -> Callable[[Client], dict[str, Any]]:
    """A dataset that ksim reads as a trace of format *name*; without its file, lengths are made up, and say so."""

    def read(client: Client) -> dict[str, Any]:
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


DATASETS: Mapping[str, Callable[[Client], dict[str, Any]]] = {
    "random": _random, "random-ids": _random, "random-mm": _random_images, "prefix_repetition": _repeated,
    "generated-shared-prefix": _groups, "sharegpt": _recorded("sharegpt", False), "custom": _recorded("", False),
    "burstgpt": _recorded("burstgpt", False), "timed_trace": _recorded("mooncake", True),
    "mooncake": _recorded("mooncake", True)}

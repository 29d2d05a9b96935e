"""GenAI-Perf's `profile_export.json` (request by request), or `profile_export_genai_perf.json` (aggregates).

https://github.com/triton-inference-server/perf_analyzer
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ksim.foundation.errors import DataError
from ksim.validation.benchmarks.files import (
    PlacedTable,
    averages,
    concurrency_of,
    labelled,
    lengths_of,
    rate_of,
    tables_of,
    with_units,
)
from ksim.validation.benchmarks.recorded import ClientLoad, Recorded, ServedRequest

__all__ = ["GenaiPerf"]

#: Its inter-token latency is that of a request: vLLM's TPOT.
_LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2el": "request_latency"}
_RATES = {"request_throughput": "request_throughput", "output_throughput": "output_token_throughput"}


class GenaiPerf:
    """Reads one run per experiment.

    The file of requests has times, but no token counts: an answer has as many tokens
    as parts, or as its usage says, and prompts have their lengths from the usage, or
    all the mean of the aggregates beside it.
    """

    example = (
        '{"service_kind": "openai", "endpoint": "v1/chat/completions", "experiments": [{"experiment": {"mode": '
        '"concurrency", "value": 2}, "requests": [{"timestamp": 1000000000, "response_timestamps": [1020000000, '
        '1030000000], "response_outputs": [{"response": "data: {\\"choices\\": [{\\"text\\": \\"a\\"}]}"}, '
        '{"response": "data: {\\"choices\\": [{\\"text\\": \\"b\\"}], \\"usage\\": {\\"prompt_tokens\\": 40, '
        '\\"completion_tokens\\": 2}}"}]}], "window_boundaries": []}], "version": "2"}'
    )

    def recognises(self, first: PlacedTable) -> bool:
        config = first.branch("input_config")
        return "experiments" in first or ("request_latency" in first and "input_config" in first and not isinstance(
            config.get("endpoint"), Mapping) and "aiperf_version" not in first)

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        for table in tables:
            if "experiments" not in table:
                yield _aggregates(path, table)
                continue
            experiments = table.tables("experiments")
            beside = _beside(path)
            for number, experiment in enumerate(experiments):
                yield _detailed(path, experiment, labelled(path.stem, number, len(experiments)), beside)


def _detailed(path: Path, experiment: PlacedTable, name: str, beside: Recorded | None) -> Recorded:
    requests = experiment.tables("requests")
    mean = round(beside.prompts.mean) if beside and beside.prompts else 0
    answers = [_served(request, mean) for request in requests]
    served = [one for one in answers if one is not None]
    mode, value = experiment.branch("experiment").get("mode"), experiment.branch("experiment").maybe("value")
    load = ClientLoad(concurrency=int(value)) if mode == "concurrency" and value else ClientLoad(rate=value or None)
    remarks = ("prompts have the mean length of the aggregates beside it",) if mean else ()
    return Recorded(path, name, "genai-perf", len(served), len(answers) - len(served), served, load=load,
                    facts=beside.facts if beside else {}, remarks=remarks)


def _served(request: PlacedTable, mean: int) -> ServedRequest | None:
    """A request; None for one without an answer."""
    times = request.numbers("response_timestamps")
    parts = [_part(part.get("response")) for part in request.tables("response_outputs")]
    if len(times) != len(parts):
        raise request.error(f"has {len(times)} response_timestamps and {len(parts)} response_outputs")
    token_times = [time for time, (words, _) in zip(times, parts, strict=True) if words]
    if not token_times:
        return None
    usage: dict[str, Any] = next((usage for _, usage in reversed(parts) if usage), {})
    prompt, begin = usage.get("prompt_tokens") or mean, request.number("timestamp")
    if not prompt:
        raise request.error("has no length of its prompt: keep profile_export_genai_perf.json beside this file")
    return ServedRequest(int(prompt), int(usage.get("completion_tokens") or len(token_times)),
                         (token_times[0] - begin) / 1e9, (token_times[-1] - begin) / 1e9,
                         arrival=begin / 1e9, sent=begin / 1e9,
                         gaps=tuple((later - earlier) / 1e9 for earlier, later in pairwise(token_times)))


def _part(text: Any) -> tuple[bool, dict[str, Any]]:
    """Whether a part of a stream has words of the answer, and its usage."""
    words = False
    usage: dict[str, Any] = {}
    for line in str(text or "").splitlines():
        try:
            event = json.loads(line.removeprefix("data:").strip())
        except ValueError:
            continue
        event = event if isinstance(event, dict) else {}
        usage = event.get("usage") or usage
        words |= bool(event.get("text_output")) or any(map(_has_words, event.get("choices") or []))
    return words, usage


def _has_words(choice: Mapping[str, Any]) -> bool:
    return bool(choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content"))


def _beside(path: Path) -> Recorded | None:
    summary = path.with_name(f"{path.stem}_genai_perf.json")
    try:
        return _aggregates(summary, tables_of(summary)[0]) if summary.is_file() else None
    except (DataError, IndexError):
        return None


def _aggregates(path: Path, table: PlacedTable) -> Recorded:
    config = table.branch("input_config")
    nested = config.branch("perf_analyzer", "stimulus")
    stimulus = nested if nested.values else config
    reported = {**with_units(table, _LATENCIES), **averages(table, _RATES)}
    done = averages(table, {"done": "request_count"}).get("done") or config.maybe("request_count") or _implied(table)
    models = config.get("model") or config.get("model_names") or []
    facts = {"model": models[0] if isinstance(models, list) else models} if models else {}
    prompts, outputs = (lengths_of(table.inner(f"{side}_sequence_length")) for side in ("input", "output"))
    return Recorded(path, path.stem, "genai-perf", round(done), prompts=prompts, outputs=outputs,
                    load=ClientLoad(rate_of(stimulus), concurrency_of(stimulus, "concurrency")), reported=reported,
                    facts=facts)


def _implied(table: PlacedTable) -> float:
    """How many requests there were, where the file does not say: ten for each in flight."""
    return 10 * (table.branch("input_config").maybe("concurrency") or 10)

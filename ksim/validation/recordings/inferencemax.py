"""InferenceMAX's (InferenceX's) aggregated results, `agg_*.json`: statistics in seconds, with GPUs, tp and concurrency.

https://github.com/InferenceMAX/InferenceMAX: utils/process_result.py
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ksim.validation.benchmarks.files import PlacedTable, all_latencies, concurrency_of, run_per_table, worded
from ksim.validation.benchmarks.recorded import ClientLoad, Recorded, RecordedLengths

__all__ = ["InferenceMax"]

_WORDS = all_latencies(("ttft", "tpot", "itl", "e2el"))
_FACTS = {"model": "model", "gpu": "hw", "tp": "tp", "ep": "ep", "framework": "framework", "precision": "precision",
          "dp_attention": "dp_attention", "image": "image"}
#: Prompts that its scripts send for each of `conc` clients.
_PROMPTS = 10


class InferenceMax:
    """Reads one run per table.

    The input and output lengths are the sequence lengths `isl` and `osl` where the
    file has them, else those that its latencies and throughputs imply.
    """

    example = (
        '{"hw": "b200", "tp": 8, "ep": 1, "conc": 4, "dp_attention": "false", "model": "deepseek-ai/DeepSeek-R1", '
        '"framework": "vllm", "precision": "fp8", "isl": 1024, "osl": 1024, "tput_per_gpu": 120.0, '
        '"output_tput_per_gpu": 60.0, "input_tput_per_gpu": 60.0, "mean_ttft": 0.1, "median_ttft": 0.1, '
        '"mean_tpot": 0.008, "median_tpot": 0.008, "median_intvty": 125.0, "median_e2el": 8.3, "mean_e2el": 8.3}'
    )

    def recognises(self, first: PlacedTable) -> bool:
        flat = _flat(first)
        return "hw" in flat and "conc" in flat and "tput_per_gpu" in flat

    def runs(self, path: Path, tables: Sequence[PlacedTable]) -> Iterator[Recorded]:
        return run_per_table(path, [_flat(table) for table in tables], _run)


def _flat(table: PlacedTable) -> PlacedTable:
    """A row of its site as a file of its repository has it: there, figures are in `metrics`."""
    if not isinstance(table.get("metrics"), Mapping) or "conc" not in table:
        return table
    named = {"hw": table.get("hardware") or table.get("hw"), "tp": table.get("tp") or table.get("decode_tp")}
    return PlacedTable(table.where, {**table.values, **named, **table.inner("metrics").values})


def _run(path: Path, table: PlacedTable, name: str) -> Recorded:
    if table.get("scenario_type") == "agentic-coding" or table.get("modality"):
        raise table.error("is not of requests with fixed lengths (agentic or diffusion), which this reader expects")
    reported = worded(table, _WORDS, "", 1.0)
    gpus = _gpus(table)
    reported |= {"output_throughput": gpus * table.number("output_tput_per_gpu"),
                 "total_token_throughput": gpus * table.number("tput_per_gpu")} if gpus else {}
    prompts, outputs, remark = _lengths(table, reported)
    concurrency = concurrency_of(table, "conc") or 1
    facts = {ours: table.get(theirs) for ours, theirs in _FACTS.items() if theirs in table}
    remarks: tuple[str, ...] = (f"{remark}; {_PROMPTS} requests per client, as its scripts send",)
    if table.get("disagg") in (True, "true") or table.get("is_multinode") in (True, "true"):
        remarks += ("the run had prefill and decode workers or several nodes: the scenario needs the same pools",)
    return Recorded(path, name, "InferenceMAX", _PROMPTS * concurrency, prompts=prompts, outputs=outputs,
                    load=ClientLoad(concurrency=concurrency), reported=reported, facts=facts, remarks=remarks)


def _gpus(table: PlacedTable) -> int:
    """The GPUs that throughputs are divided by; 0 where prefill and decode GPUs are counted apart."""
    if "num_prefill_gpu" in table or "tp" not in table:
        return 0
    return table.count("tp") * (table.count("pp") if "pp" in table else 1)


def _lengths(table: PlacedTable, reported: dict[str, float]) -> tuple[RecordedLengths, RecordedLengths, str]:
    if table.maybe("isl") and table.maybe("osl"):
        prompts, outputs = RecordedLengths(table.number("isl")), RecordedLengths(table.number("osl"))
        return prompts, outputs, "every request has the lengths isl and osl"
    try:
        output = 1 + (reported["e2el_mean"] - reported["ttft_mean"]) / reported["tpot_mean"]
        prompt = output * table.number("input_tput_per_gpu") / table.number("output_tput_per_gpu")
    except (KeyError, ZeroDivisionError):
        raise table.error("has neither isl and osl nor mean latencies and throughputs that imply them") from None
    return (RecordedLengths(prompt), RecordedLengths(output),
            f"lengths of {prompt:.0f} and {output:.0f} tokens follow from its mean latencies and throughputs")

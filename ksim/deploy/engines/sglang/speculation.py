"""SGLang's flags of speculative decoding as vLLM's table."""

from collections.abc import Sequence
from typing import Any

from ksim.deploy.engines.vllm.speculation import drafter
from ksim.deploy.flags.given import Given, value_of
from ksim.foundation.errors import ConfigError

#: Flags that are read together.
FLAGS = ("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
         "speculative_num_draft_tokens", "speculative_draft_model_quantization", "speculative_draft_kv_cache_dtype")
_METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram"}
#: Drafts that SGLang chooses for models with heads of their own where no flag says it (server_args.py).
_STEPS = 3


def speculation(given: Sequence[Given]) -> dict[str, Any]:
    """The table of drafts; empty without any.  Raises ConfigError for algorithms and trees that are not simulated."""
    by_flag = {one.dest: one for one in given}
    algorithm = by_flag.get("speculative_algorithm")
    if algorithm is None or str(algorithm.value).lower() == "none":
        return {}
    if str(algorithm.value).upper() not in _METHODS:
        raise ConfigError(algorithm.where, f"{algorithm.said} is not simulated; ksim has {', '.join(_METHODS)}")
    _check_chain(by_flag.get("speculative_eagle_topk"))
    method = _METHODS[str(algorithm.value).upper()]
    draft = by_flag.get("speculative_draft_model_path")
    if method == "eagle" and draft is None:
        method = "mtp"
    table: dict[str, Any] = {"method": method, "num_speculative_tokens": _tokens(given, method)}
    if draft is not None and method != "mtp":
        table["model"] = drafter(str(draft.value), draft)
    return table


def _tokens(given: Sequence[Given], method: str) -> int:
    drafted = value_of(given, "speculative_num_draft_tokens")
    steps = value_of(given, "speculative_num_steps")
    if method == "ngram":
        return int(drafted or 12)
    return int(steps or (drafted - 1 if drafted and drafted > 1 else _STEPS))


def _check_chain(topk: Given | None) -> None:
    if topk is not None and topk.value > 1:
        raise ConfigError(topk.where, f"{topk.said}: trees of drafts are not simulated; chains are,"
                                      f" --speculative-eagle-topk 1")

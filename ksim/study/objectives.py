"""What a study looks for: numbers of summary.json to minimise or maximise, and bounds on them."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from attrs import frozen

from ksim.flow.log import Log
from ksim.foundation.errors import ConfigError, UnknownName
from ksim.report.result import Result
from ksim.report.wording import number

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_REQUIREMENT = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


@frozen
class Objective:
    """A number of a run to minimise, or to maximise."""

    key: str
    maximise: bool = False

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Parse ``key``, or ``max:key`` or ``-key`` for what should be large; raises UnknownName."""
        key = re.sub("^(-|max:|min:)", "", text)
        if key not in (known := measures()):
            raise UnknownName("objective", key, known)
        return cls(key, text.startswith(("-", "max:")))

    def __str__(self) -> str:
        return f"max:{self.key}" if self.maximise else self.key

    def cost(self, value: float) -> float:
        """*value* as a cost, of which less is better."""
        return -value if self.maximise else value


@frozen
class Requirement:
    """A bound on a number of a run: ``key sign bound``, where `sign` is <, <=, > or >=."""

    key: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str, flag: str = "--require") -> "Requirement":
        """Parse ``p99_ttft_ms<1000`` as *flag* takes it; raises ConfigError, and UnknownName for an unknown key."""
        match = _REQUIREMENT.fullmatch(text)
        bound = _finite(match[3]) if match else None
        if match is None or bound is None:
            raise ConfigError(flag, f"expected KEY<NUMBER, such as 'p99_ttft_ms<1000', or with <=, > or >=, not"
                                           f" {text!r}")
        if match[1] not in (known := measures()):
            raise UnknownName("number of summary.json", match[1], known)
        return cls(match[1], match[2], bound)

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.bound:g}"

    def missed(self, summary: Mapping[str, Any]) -> str:
        """Why *summary* misses it; "" where it does not."""
        value = value_of(summary, self.key)
        if value is None:
            return f"the run has no {self.key}, which must be {self.sign} {self.bound:g}"
        if _HOLDS[self.sign](value, self.bound):
            return ""
        return f"{self.key} is {number(value)}, not {self.sign} {self.bound:g}"


def measures() -> Sequence[str]:
    """The numbers that tell how a run went: keys of summary.json, and what is `derived` from it."""
    summary = Result(Log()).summary
    return [*(key for key, value in summary.items()
              if key == "slo_attainment" or not (isinstance(value, bool) or key.startswith("slo_"))), *derived(summary)]


def value_of(summary: Mapping[str, Any], key: str) -> float | None:
    """A number of a run by its *key*, one of `measures`; None where the run does not tell it."""
    value: float | None = summary[key] if key in summary else derived(summary).get(key)
    return value


def derived(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """What follows from *summary*: dollars and joules per million tokens, of input and output together.

    They are None where the run tells no costs, or has no tokens.
    """
    millions = (summary.get("total_input_tokens", 0) + summary.get("total_output_tokens", 0)) / 1e6
    costs = [cost for key in ("energy_dollars", "gpu_dollars") if (cost := summary.get(key)) is not None]
    return {"usd_per_million_tokens": sum(costs) / millions if costs and millions else None,
            "joules_per_million_tokens": summary["energy_joules"] / millions if millions else None}


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None

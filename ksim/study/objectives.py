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
    """A number of summary.json to minimise, or to maximise."""

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
    """A bound on a number of summary.json: ``key sign bound``, where `sign` is <, <=, > or >=."""

    key: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> "Requirement":
        """Parse ``p99_ttft_ms<1000`` as of ``--require``; raises ConfigError, and UnknownName for an unknown key."""
        match = _REQUIREMENT.fullmatch(text)
        bound = _finite(match[3]) if match else None
        if match is None or bound is None:
            raise ConfigError("--require", f"expected KEY<NUMBER, such as 'p99_ttft_ms<1000', or with <=, > or >=, not"
                                           f" {text!r}")
        if match[1] not in (known := measures()):
            raise UnknownName("number of summary.json", match[1], known)
        return cls(match[1], match[2], bound)

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.bound:g}"

    def missed(self, summary: Mapping[str, Any]) -> str:
        """Why *summary* misses it; "" where it does not."""
        value = summary.get(self.key)
        if value is None:
            return f"the run has no {self.key}, which must be {self.sign} {self.bound:g}"
        if _HOLDS[self.sign](value, self.bound):
            return ""
        return f"{self.key} is {number(value)}, not {self.sign} {self.bound:g}"


def measures() -> Sequence[str]:
    """The keys of summary.json whose values are numbers that tell how a run went."""
    return [key for key, value in Result(Log()).summary.items()
            if key == "slo_attainment" or not (isinstance(value, bool) or key.startswith("slo_"))]


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None

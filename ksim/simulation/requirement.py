"""What a point must keep to: a bound on a number of its summary."""

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

_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_PATTERN = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


@frozen
class Requirement:
    """A number of summary.json by its `key`, and the `bound` that it must keep to: `sign` is <, <=, > or >=."""

    key: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> "Requirement":
        """Parse ``p99_ttft_ms<1000`` as of ``--require``; raises ConfigError, and UnknownName for an unknown key."""
        found = _PATTERN.fullmatch(text)
        bound = _finite(found[3]) if found else None
        if found is None or bound is None:
            raise ConfigError("--require", f"expected KEY<NUMBER, such as 'p99_ttft_ms<1000', or with <=, > or >=, not"
                                           f" {text!r}")
        if found[1] not in (known := measures()):
            raise UnknownName("number of summary.json", found[1], known)
        return cls(found[1], found[2], bound)

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.bound:g}"

    def missed(self, summary: Mapping[str, Any]) -> str:
        """Why *summary* does not keep to it; "" where it does."""
        value = summary.get(self.key)
        if value is None:
            return f"the run has no {self.key}, which must be {self.sign} {self.bound:g}"
        if _HOLDS[self.sign](value, self.bound):
            return ""
        return f"{self.key} is {number(value)}, not {self.sign} {self.bound:g}"


def measures() -> Sequence[str]:
    """The keys of summary.json that are numbers and say how a run went."""
    return [key for key, value in Result(Log()).summary.items()
            if key == "slo_attainment" or not (isinstance(value, bool) or key.startswith("slo_"))]


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None

"""How many examples properties try: few in `make test`, the same each time; many in `make explore`, fresh each time."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

#: How many times as much as usual `make explore` tries; it sets this variable.
TIMES = float(os.environ.get("KSIM_EXPLORE", "0"))
EXPLORING = TIMES > 0
#: How many of the examples that a property asks for it gets.
SHARE = TIMES if EXPLORING else 1 / 12


def load_profile() -> None:
    """Set what holds for all properties: no clock decides, and the examples are the same unless one explores."""
    settings.register_profile("ksim", deadline=None, derandomize=not EXPLORING, print_blob=True,
                              max_examples=share(100),
                              suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    settings.load_profile("ksim")


def examples(count: int, **more: Any) -> settings:
    """Settings of a property that deserves about *count* examples; *more* are further ones of Hypothesis."""
    return settings(max_examples=share(count), **more)


def share(count: int) -> int:
    """As many of *count* examples as are tried now."""
    return max(round(count * SHARE), 2)

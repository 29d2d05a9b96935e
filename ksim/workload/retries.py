"""How a client tries again when it is refused."""

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import ge, gt, le

from ksim.foundation.units import Seconds, quantity

if TYPE_CHECKING:
    import numpy as np


@frozen
class Retries:
    """What a client does about status 429: it waits, and tries again; each wait is twice as long as the one before.

    The defaults are those of the openai package for Python (src/openai/_base_client.py, _constants.py).
    """

    max_retries: int = field(default=2, validator=(ge(0), le(1000)))
    """Attempts after the first. Unit: attempts. Source: openai-python max_retries."""
    initial_delay: Seconds = field(default=0.5, converter=quantity, validator=gt(0))
    """The wait before the first of them. Unit: s. Source: openai-python INITIAL_RETRY_DELAY."""
    max_delay: Seconds = field(default=8.0, converter=quantity, validator=gt(0))
    """The longest wait. Unit: s. Source: openai-python MAX_RETRY_DELAY."""
    jitter: float = field(default=0.25, validator=(ge(0), le(1)))
    """The share of a wait that chance may take off, by the scenario's seed. Unit: share. Source: openai-python."""

    def delay(self, taken: int, random: "np.random.Generator") -> float:
        """Seconds until the next attempt, where so many retries were *taken* before."""
        return min(self.initial_delay * 2.0**taken, self.max_delay) * (1.0 - self.jitter * float(random.random()))

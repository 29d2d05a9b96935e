"""Property tests for a scheduling policy, a scheduler or a KV cache of your own."""

from ksim.foundation.errors import MissingExtra

try:
    import hypothesis  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(MissingExtra("testing", "ksim.testing")) from error

from ksim.testing.batching import check_batching
from ksim.testing.cache import CacheFault, check_cache
from ksim.testing.check_transfers import TRANSFER_INVARIANTS, check_transfers
from ksim.testing.invariants import INVARIANTS, SGLANG_INVARIANTS
from ksim.testing.policy import check_policy, check_scheduler
from ksim.testing.trial import PolicyFault

__all__ = ["check_policy", "check_scheduler", "check_cache", "check_batching", "check_transfers", "INVARIANTS",
           "SGLANG_INVARIANTS", "TRANSFER_INVARIANTS", "PolicyFault", "CacheFault"]

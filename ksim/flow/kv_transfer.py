"""What the engines of a split request know of each other."""

from typing import Any

from attrs import frozen


@frozen
class KvTransferParams:
    """vLLM's `kv_transfer_params`: prefill here for another engine, or take the prompt's KV from one.

    `transfer` is what both share, for their connectors alone.  If the first output token was `handed_over`, it is the
    last of the prompt here.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    transfer: Any = None
    handed_over: bool = False

    @property
    def tokenized(self) -> bool:
        """Whether the prompt comes as tokens: with the first token come those before it."""
        return self.do_remote_prefill and self.handed_over

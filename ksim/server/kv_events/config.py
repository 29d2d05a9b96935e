"""Settings of KV events: those of vLLM's `--kv-events-config`."""

import json

from attrs import field, frozen
from attrs.validators import ge, in_

from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError

__all__ = ["OPTION", "KvEventsConfig", "endpoint_of"]

#: What errors name.
OPTION = "--kv-events-config"
_LAST_PORT = 65535


@frozen(kw_only=True)
class KvEventsConfig:
    """vLLM's KVEventsConfig; with `enable_kv_cache_events`, the `publisher` is "zmq" unless it is "null".

    Subscribers can ask for the last `buffer_steps` batches again at `replay_endpoint`.  Up to `hwm` batches wait for a
    slow subscriber, further ones are lost.  Batches are sent at once, so `max_queue_size` has no effect.
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = field(default=None, validator=in_((None, "null", "zmq")))
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = field(default=10_000, validator=ge(1))
    hwm: int = field(default=100_000, validator=ge(0))
    max_queue_size: int = field(default=100_000, validator=ge(1))
    topic: str = ""

    @classmethod
    def of(cls, text: str) -> "KvEventsConfig":
        """Read the JSON of `vllm serve --kv-events-config`; raises ConfigError for anything else."""
        try:
            table = json.loads(text)
        except ValueError as error:
            raise ConfigError(OPTION, f"is no JSON: {error}") from None
        if not isinstance(table, dict):
            raise ConfigError(OPTION, f"expected a JSON object, not {text!r:.80}")
        return structure(cls, table, OPTION)

    @property
    def publishes(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher != "null"


def endpoint_of(endpoint: str, number: int) -> str:
    """The *endpoint* of engine *number*: the port plus the number.  Port 0 stays: the system chooses."""
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{number}" if number else endpoint
    base, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise ConfigError(OPTION, f"the address {endpoint!r} has no port; write it like tcp://*:5557")
    if int(port) + number > _LAST_PORT:
        raise ConfigError(OPTION, f"the address {endpoint!r} leaves no port for engine {number}: {int(port) + number}"
                                   f" is more than {_LAST_PORT}")
    return f"{base}:{int(port) + number}" if int(port) else endpoint

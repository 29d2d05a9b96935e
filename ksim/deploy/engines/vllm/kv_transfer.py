"""`--kv-transfer-config`: its keys are ksim's; addresses change nothing."""

from collections.abc import Mapping
from typing import Any

from ksim.deploy.flags.given import Given
from ksim.deploy.flags.json_tables import known_keys, table_of
from ksim.deploy.flags.meaning import Handler, Reading
from ksim.deploy.launches import Note
from ksim.specs.kv_transfer import KvTransferConfig

#: Keys that say where engines are.
_ADDRESSES = ("kv_ip", "kv_port", "kv_rank", "engine_id", "kv_parallel_size", "kv_buffer_size",
              "enable_permute_local_kv")
_ROLES: Mapping[Any, str] = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _config(reading: Reading, given: Given) -> None:
    table = known_keys(given, table_of(given), KvTransferConfig)
    if addresses := [key for key in table if key in _ADDRESSES]:
        reading.idle.append(Note(given.where, f"{given.flag.name} {', '.join(addresses)}",
                                 "addresses and buffers of connectors change nothing here"))
    config = {key: value for key, value in table.items() if key not in _ADDRESSES and value != {}}
    if config:
        reading.serve["kv_transfer_config"] = config


def role_of(serve: Mapping[str, Any]) -> str:
    """prefill or decode, where the configuration of transfers says so."""
    return _ROLES.get(serve.get("kv_transfer_config", {}).get("kv_role"), "")


HANDLERS: Mapping[str, Handler] = {"kv_transfer_config": _config}

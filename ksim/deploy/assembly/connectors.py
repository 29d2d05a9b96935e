"""Connectors of engines that stand alone: there is no other engine to send KV to."""

from collections.abc import Sequence

from attrs import evolve

from ksim.deploy.launches import Launch, Note
from ksim.simulation.connector_parts import OFFLOAD, aliases

_WHY = ("left out: no engine here prefills for another; where others do, import their lines together, with --role for"
        " each")


def alone_or_joined(launches: Sequence[Launch]) -> list[Launch]:
    """*launches* without connectors between engines, where none prefills for others."""
    if any(launch.role == "prefill" for launch in launches):
        return [*launches]
    return [_alone(launch) for launch in launches]


def _alone(launch: Launch) -> Launch:
    config = launch.serve.get("kv_transfer_config")
    if not config or _offloads(str(config.get("kv_connector", ""))):
        return launch
    serve = {key: value for key, value in launch.serve.items() if key != "kv_transfer_config"}
    note = Note(launch.where, f"kv_connector {config.get('kv_connector', '')}".strip(), _WHY)
    return evolve(launch, serve=serve, role="both", remarks=(*launch.remarks, note))


def _offloads(name: str) -> bool:
    known = aliases(OFFLOAD)
    return name in known or name in known.values() or name == "MultiConnector"

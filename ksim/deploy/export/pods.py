"""The parts of pods that several forms have: the container's image, command, GPUs, probes and shared memory."""

import re
from typing import Any

from ksim.deploy.export.outgoing import Outgoing, OutgoingPool
from ksim.deploy.manifests.node_labels import PRODUCTS

__all__ = ["PORT", "PRODUCT", "app", "env", "image", "label", "mounts", "name_of", "nodes_flags", "probes", "product",
           "unlabelled", "volumes"]

PORT = 8000
PRODUCT = "nvidia.com/gpu.product"


def image(pool: OutgoingPool) -> str:
    """vLLM's image of the pool's release."""
    release = re.match(r"vllm-(\d+(?:\.\d+)*)", pool.engine)
    number = release[1] if release else "latest"
    return f"vllm/vllm-openai:v{number}" + (".0" if number.count(".") == 1 else "")


def label(text: str) -> str:
    """*text* as the name of an object: lower case, letters, digits and hyphens, no longer than 50."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:50].strip("-") or "engine"


def app(outgoing: Outgoing) -> str:
    """The label of all engines: the model's name without its organisation."""
    return label(outgoing.model.rstrip("/").rpartition("/")[2])


def name_of(outgoing: Outgoing, pool: OutgoingPool) -> str:
    """What a pool's object is called."""
    return label(f"{app(outgoing)[:30]}-{pool.name}") if pool.name else app(outgoing)


def product(pool: OutgoingPool) -> dict[str, str]:
    """The label of nodes that have the pool's GPU; empty for a GPU whose label is not known."""
    return {PRODUCT: PRODUCTS[pool.gpu]} if pool.gpu in PRODUCTS else {}


def unlabelled(outgoing: Outgoing) -> list[str]:
    """Remarks on GPUs without a known label."""
    return [f"{pool.name or 'engine'}: gpu = {pool.gpu!r}: no label of nodes is known; name them with a nodeSelector"
            for pool in outgoing.pools if not product(pool)]


def env(pool: OutgoingPool) -> list[dict[str, Any]]:
    """Variables that an engine needs which sends its KV: NIXL's side channel listens on the pod's address."""
    config = pool.settings.kv_transfer_config
    if config is None or "Nixl" not in str(config.kv_connector):
        return []
    return [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def probes(port: int) -> dict[str, Any]:
    """Half an hour to load weights; then ready and alive as long as /health answers."""
    asked = {"httpGet": {"path": "/health", "port": port}}
    return {"startupProbe": {**asked, "periodSeconds": 10, "failureThreshold": 180},
            "readinessProbe": {**asked, "periodSeconds": 5}, "livenessProbe": {**asked, "periodSeconds": 10}}


def nodes_flags() -> list[str]:
    """Flags of an engine on several pods of a LeaderWorkerSet, which sets these variables."""
    return ["--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr",
            "$(LWS_LEADER_ADDRESS)"]


def volumes() -> list[dict[str, Any]]:
    """Shared memory, through which the processes of an engine talk."""
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "20Gi"}}]


def mounts() -> list[dict[str, str]]:
    return [{"name": "shm", "mountPath": "/dev/shm"}]

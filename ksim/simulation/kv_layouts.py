"""Which part of the KV cache each GPU of an engine has."""

from attrs import evolve

from ksim.kv_transfer.layout import KvLayout, LayerShare
from ksim.simulation.deployment import Deployment
from ksim.simulation.drafters import kept_layers

__all__ = ["kv_layout"]


def kv_layout(deployment: Deployment) -> KvLayout:
    """Which part of the KV cache each GPU of an engine of *deployment* has."""
    layers = []
    for stage, shard in enumerate(deployment.shards):
        parts, whole = (kept_layers(deployment.model, deployment.serve, rank)
                        for rank in (shard, evolve(shard, tensor=1)))
        for part, layer in zip(parts, whole, strict=True):
            held, all_ = part.token_bytes or part.sequence_bytes, layer.token_bytes or layer.sequence_bytes
            layers.append(LayerShare(stage, part.token_bytes, max(1, round(all_ / held)), part.sequence_bytes))
    return KvLayout(deployment.serve.tensor_parallel_size, tuple(layers))

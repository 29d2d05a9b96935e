"""A model so small that whole runs of it are quick, and what requests to it may look like."""

from typing import Any

#: Two layers, four KV heads: its steps have few kernels, can be cut in four, and are mostly the host's.
TINY = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096}


def uniform(low: int | str, high: int | str) -> dict[str, Any]:
    return {"kind": "uniform", "low": low, "high": high}

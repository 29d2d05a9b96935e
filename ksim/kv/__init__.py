"""KV caches: what stays cached, what stays below the GPU, and how KV moves between engines."""

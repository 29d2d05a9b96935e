"""KV: caches, what lies below the GPU, and transfers."""

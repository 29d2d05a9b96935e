"""KV offloading: what is kept below the GPU's cache, in larger stores, and what comes back."""

"""KV transfers: how the KV cache of a request moves from one engine to another."""

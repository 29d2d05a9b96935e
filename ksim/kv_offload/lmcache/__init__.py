"""LMCache: chunks of KV in the host memory of an engine.

`connector` is the scheduler's side, and `store` has the chunks.
"""

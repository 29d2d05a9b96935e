"""KV events as vLLM publishes them.

`config` has the settings, `events` what enters and leaves prefix caches, and `publisher` the ZeroMQ sockets.
"""

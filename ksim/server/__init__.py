"""A server to talk to: an OpenAI-compatible API whose latencies are the simulation's."""

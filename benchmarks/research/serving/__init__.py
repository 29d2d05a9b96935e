"""Serving runs of a real vLLM, compared with simulated ones in latency, throughput, energy and single steps."""

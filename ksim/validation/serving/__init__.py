"""Serving runs of a real vLLM against our own: how far off are latency, throughput, energy and single steps?"""

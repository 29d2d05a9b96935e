"""Deciders of llm-d's endpoint picker: whether one engine prefills a request for another (ksim/cluster/llm_d)."""

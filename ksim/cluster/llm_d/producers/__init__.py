"""Producers of llm-d's endpoint picker: what its other parts read of engines (ksim/cluster/llm_d)."""

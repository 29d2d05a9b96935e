"""Filters of llm-d's endpoint picker: which engines come into question (ksim/cluster/llm_d)."""

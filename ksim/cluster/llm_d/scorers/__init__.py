"""Scorers of llm-d's endpoint picker: how good each engine is, from 0 to 1 (ksim/cluster/llm_d)."""

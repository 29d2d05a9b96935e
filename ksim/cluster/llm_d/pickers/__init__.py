"""Pickers of llm-d's endpoint picker: which engine it is, by their scores (ksim/cluster/llm_d)."""

"""Formulas of oracles, compiled for one layer and one GPU."""

"""Comparisons with public tables, in benchmarks/research."""

"""Comparisons of ksim with public tables of kernels, runs and ladders, which are not part of the package."""

from pathlib import Path

#: What is assumed about public runs and ladders: engines, recipes, loads.
RECIPES = Path(__file__).parent / "recipes"

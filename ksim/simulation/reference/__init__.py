"""What a scenario file may say: as a JSON Schema, and as a commented file to start from.

Both come from the documentation of the keys (foundation/keys.py), as do the tables of docs/scenario.md and the help of
the flags.  `python -m benchmarks.reference` writes the files that are kept.
"""

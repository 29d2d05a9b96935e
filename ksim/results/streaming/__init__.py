"""Results of runs that are too long to be kept: written while they go on, and forgotten.

docs/glossary.md says what such a run does not tell.
"""

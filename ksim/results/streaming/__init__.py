"""Results of runs that are too long to be kept: they are written during the run, and forgotten.

docs/glossary.md says what such a run leaves out.
"""

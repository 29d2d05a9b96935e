"""Texts as they were pasted: every line, and every value of a YAML text, can say where it stands."""

"""Flags of engines: which there are (ksim/data/flags/NAME.json), how a line gives them, and what each means here.

`table` and `given` read words as the engine's own parser does.  `meaning` (ksim/data/flags/NAME-meaning.toml) says of
each flag whether it is simulated, has no effect here, or is refused.
"""

"""A fleet that is played against the wall clock.

`live` has the clock: requests come in with `submit`, and a `listener` hears of their tokens when it is time.
`live_log` tells metrics and recordings what happens, `lateness` notices when the machine cannot keep up, and
`recording` writes a run directory that `ksim run` can replay.
"""

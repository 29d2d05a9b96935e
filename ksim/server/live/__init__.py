"""A fleet that is played against the wall clock.

`live` has the clock: requests come in with `submit`, and the `listener` of each is called with its tokens when it is
time.  Before that, each waits to be read (`turns`).  A request in flight is a `handle`.  `live_log` passes events to
metrics and recordings, `lateness` warns when the machine cannot keep up, and `recording` writes a run directory that
`ksim run` replays.  `warming` computes before the first request what is computed only once.
"""

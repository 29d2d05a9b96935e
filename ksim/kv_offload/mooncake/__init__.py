"""Mooncake Store: a pool of the host memory of all nodes, which all engines share.

`connector` is the scheduler's side, `worker` that of the copies, and `pool` has the blocks.
"""

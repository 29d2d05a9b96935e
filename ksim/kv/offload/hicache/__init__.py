"""SGLang's HiCache: host memory behind the radix tree, and storage behind that.

`cache` has the tree.  `connector` is the scheduler's side, and `prefetch` what that fetches from storage and keeps
there.  `storage` says what storage has, and `worker` plays the reads and writes in time.
"""

"""Replies to clients.

Answers are made up in advance (`answer`, `lengths`, `logprobs`).  A `reply` is written as their tokens come, in
`chunks` or as a whole; `completions` and `chats` have the shapes of the two APIs, `rendering` what they share.
"""

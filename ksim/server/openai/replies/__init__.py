"""Replies to clients.

Answers are made up in advance (`author`, `answer`, `lengths`, `logprobs`).  A `reply` is written as their tokens come,
in `chunks` or as a whole.  `completion_format` and `chat_format` have the shapes of the two APIs, `reply_format` what
they share.
"""

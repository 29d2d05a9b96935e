"""Texts and their tokens: the `tokenizer` interface, and the two that have it.

`made_up` needs no files; `hugging_face` reads a tokenizer.json, and `chat_template` the template beside it.
"""

"""OpenAI's protocol as vLLM 0.33 speaks it.

`api` makes a body into a reply, and into the requests of a fleet whose tokens it waits for.  `fields` reads and checks
what a client asks, `prompts` its texts and images, `kinds` the types of its values; `reply` makes answers up and
writes them, in the shapes of `formats`.
"""

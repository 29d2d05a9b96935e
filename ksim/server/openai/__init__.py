"""OpenAI's protocol as vLLM 0.33 speaks it.

`api` reads a body into a reply and the requests of a fleet whose tokens it waits for.  On the way, `requests` has the
fields and what is refused of them, `intake` makes requests and their answers, `replies` writes them for clients, and
`served_model` knows names and limits.
"""

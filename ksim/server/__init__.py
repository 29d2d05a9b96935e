"""A server to talk to: an OpenAI-compatible API whose latencies are the simulation's.

A request comes in at the top and goes down; its tokens come back up.  Each package imports only those below it:

    serving     `ksim serve` from start to end: puts the packages below together
    http        sockets, the ASGI application and its metrics, bodies that are read, streams that are written
    metrics     what GET /metrics answers, with vLLM's names
    kv_events   what enters and leaves prefix caches, as vLLM publishes it by ZeroMQ
    openai      the protocol: requests as vLLM reads them, made-up answers, replies in vLLM's shapes
    text        tokenizers and chat templates
    live        a fleet that is played against the wall clock, and the recording of what it did
    errors      errors that clients get, in vLLM's words
"""

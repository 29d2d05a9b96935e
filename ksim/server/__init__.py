"""A server to talk to: an OpenAI-compatible API whose latencies are the simulation's.

A request comes in at the top and goes down; its tokens come back up.  Each imports only those below it:

    serving             `ksim serve` from start to end: puts what is below together
    sglang_api          what servers of SGLang answer: their own API, beside OpenAI's
    sglang_reply        replies to /generate
    sglang_fields       requests to it, as SGLang reads them
    sglang_metrics      their metrics
    http                sockets, the ASGI application and its metrics, bodies that are read, streams that are written
    metrics             what GET /metrics answers
    vllm_metrics        its names and meanings, as vLLM has them
    exposition          metrics that are cheap to count, and their text as Prometheus reads it
    kv_event_publisher  what enters and leaves prefix caches, sent by ZeroMQ as vLLM does
    kv_events           what it says
    openai              the protocol: requests as vLLM reads them, made-up answers, replies in vLLM's shapes
    text                tokenizers and chat templates
    recording           what a live fleet did, as a result and a trace
    live                a fleet that is played against the wall clock
    errors              errors that clients get, in vLLM's words
"""

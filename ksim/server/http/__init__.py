"""HTTP: where the server listens (`sockets`), and which requests it answers (`application`).

A request's `body` is read whole.  A response goes out through a `sink`, piece by piece (`streams`), and the tokens of
a stream past uvicorn (`wire`).  `http_metrics` counts requests, as middleware around the application.
"""

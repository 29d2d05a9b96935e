"""HTTP: which requests the server answers (`application`), and how bodies are read and responses written (`streams`).

The tokens of a stream go out past uvicorn's ASGI (`wire`).  `http_metrics` counts requests, as middleware.
"""

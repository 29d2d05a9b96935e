"""What GET /metrics answers.

A `meter` listens to a live fleet and counts what its engines do (`engine_meter`) in vLLM's metrics (`vllm_metrics`);
`exposition` is Prometheus's text format.  `http_metrics` and `process_metrics` are those of the server itself.
"""

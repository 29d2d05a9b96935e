"""What GET /metrics answers.

A `meter` listens to a live fleet and counts what its engines do (`engine_meter`) in vLLM's metrics (`vllm_metrics`);
`exposition` is Prometheus's text format.  `process_metrics` are those of the server's process.
"""

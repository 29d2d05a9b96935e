"""The keys of TensorRT-LLM's LLM API, from options of `trtllm-serve` and its YAML."""

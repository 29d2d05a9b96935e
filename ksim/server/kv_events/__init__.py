"""KV events as vLLM publishes them: what enters and leaves prefix caches (`events`), and its way out (`publisher`)."""

"""The flags of `vllm serve` that say more than one value: tables in JSON, parallelism over nodes, adapters."""

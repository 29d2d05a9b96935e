"""The flags of SGLang's server that depend on each other: parallelism, the scheduler, speculation, the cache."""

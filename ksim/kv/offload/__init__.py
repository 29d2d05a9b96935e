"""KV cache beyond the GPUs: in host memory, on disks, and in storage that engines share.

An engine that offloads has a connector, which its scheduler asks, and a worker, which makes the copies in time.

    connectors/    what a scenario may name as `kv_connector`, with its options; a file each, which builds the others
    connector      vLLM's OffloadingConnector, over a `store` of chunks with one of the `evictions/`; alone, or beside
                   one that sends KV to other engines, in one MultiConnector
    worker         copies between GPUs and host memory, one after the other
    tiered         the connector and the worker with tiers behind host memory
    lmcache        LMCache's connector and its store
    mooncake       the connector, the worker and the pool of Mooncake's store, which engines share
    hicache/       SGLang's HiCache: the radix tree in two memories, and storage behind them
"""

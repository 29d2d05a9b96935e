"""KV cache beyond the GPUs: in host memory, on disks, and in storage that engines share.

An engine that offloads has a connector, which its scheduler asks, and a worker, which makes the copies in time.

    connectors/    what a scenario may name as `kv_connector`, with its options; a file each, which builds the others
    connector      vLLM's OffloadingConnector, over a `store` of chunks with one of the `evictions/`;
                   `offloaded_job` is what it knows of a job, `copies_under_way` what it has begun
    worker         copies between GPUs and host memory, one after the other in a `copy_stream`
    tiered_*       the connector and the worker with `tiers` behind host memory
    lmcache_*      LMCache's connector and its store
    mooncake_*     the connector, the worker and the pool of Mooncake's store, which engines share
    hicache/       SGLang's HiCache: the radix tree in two memories, and storage behind them
    joined         a connector that offloads and one that sends KV to other engines, in one MultiConnector
"""

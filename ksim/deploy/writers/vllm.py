"""`vllm serve`, or SGLang's server: a line for each engine, with comments on what lines do not say."""

from collections.abc import Iterator

from ksim.deploy.exporting import PORT, Outgoing, OutgoingPool, comments, unscaled
from ksim.deploy.vllm_line import WrittenFlag

__all__ = ["Vllm"]


class Vllm:
    """Lines for a shell.  A pool of several replicas has the line as often, each with a port of its own."""

    def write(self, outgoing: Outgoing) -> dict[str, str]:
        """The lines; a fleet's router is a comment, as each line starts one engine."""
        parts = [comments([*outgoing.missing, *unscaled(outgoing), *_router(outgoing), *_multiple(outgoing)])]
        port = PORT
        for pool in outgoing.pools:
            parts.append(f"# {_heading(pool)}\n")
            several = len(outgoing.pools) > 1 or pool.replicas > 1
            for _ in range(pool.replicas):
                parts.append(pool.line.text(*([WrittenFlag("--port", (str(port),))] if several else [])) + "\n")
                port += 1
        return {"": "".join(parts)}


def _heading(pool: OutgoingPool) -> str:
    gpus = f"{pool.gpus} x {pool.gpu}" if pool.gpus > 1 else pool.gpu
    release = pool.engine.replace("vllm-", "vLLM ").replace("sglang-", "SGLang ")
    if not pool.name:
        return f"{release} on {gpus}"
    count = f"{pool.replicas} replicas, each" if pool.replicas > 1 else "one replica"
    return f"pool {pool.name} ({pool.role}): {count} {release} on {gpus}"


def _router(outgoing: Outgoing) -> Iterator[str]:
    for key in ("router", "pair_router"):
        if (choice := getattr(outgoing, key)) is not None:
            yield f"{key} = {choice.name!r}: lines start engines; what stands before them is yours to start"


def _multiple(outgoing: Outgoing) -> Iterator[str]:
    for pool in outgoing.pools:
        if pool.machines > 1 and pool.engine.startswith("sglang"):
            yield (f"{pool.name or 'engine'}: needs {pool.machines} machines; start the line on each, with --nnodes"
                   f" {pool.machines} --node-rank N --dist-init-addr HOST:PORT")
        elif pool.machines > 1:
            yield (f"{pool.name or 'engine'}: needs {pool.machines} machines; start the line on each, with --nnodes"
                   f" {pool.machines} --node-rank N --master-addr HOST, and --headless on all but the first")

"""What an engine logs of jobs that have ended: their tokens, step by step."""

from collections.abc import Callable

from ksim.engine.parent_request import ParentRequest
from ksim.flow.decoded import Decoded
from ksim.flow.events import Emitted, Failed, Finished, Prefilled
from ksim.flow.log import Log
from ksim.scheduling.job import Job

__all__ = ["log_end"]


def log_end(log: Log, engine: int, job: Job, told: Callable[[], object], time: float) -> bool:
    """Log that *job* has ended on *engine* at *time*, and its tokens; return whether that ends its request there.

    Its end will be *told* to a parent if it is one of several sequences.
    """
    params, request = job.kv_transfer_params, job.request.id
    if job.failed:
        log.add(Failed(time, request, engine, "the KV that another engine had computed was gone"))
        return True
    if params is not None and params.do_remote_decode:
        log.add(Prefilled(time, request, engine, job.emitted[-1].last))
        return True
    if params is not None and params.handed_over:
        first = job.emitted[0].first
        log.add(Emitted(time, request, engine, first, first))
    if not isinstance(told, ParentRequest):
        _log_tokens(log, engine, job, request, time)
        return True
    over = told.finish(job)
    if over:
        _log_tokens(log, engine, told, request, time)
    return over


def _log_tokens(log: Log, engine: int, ended: Job | ParentRequest, request: int, time: float) -> None:
    """Log the tokens of a sequence, or of all sequences of a *request*, which have *ended*."""
    for run in ended.emitted:
        log.add(Emitted(time, request, engine, run.first, run.last, run.every or 1, run.tokens))
    several = ended if isinstance(ended, ParentRequest) else None
    for step, sequences, length in several.decoded() if several else ():
        log.add(Decoded(time, request, engine, step, sequences, length))
    log.add(Finished(time, request, engine, ended.verified, ended.accepted, several.preemptions if several else 0))

"""What an engine logs of jobs that have ended: their tokens, step by step."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import evolve

from ksim.engine.parent_request import ParentRequest
from ksim.flow.events import Decoded, Emitted, Failed, Finished, Prefilled
from ksim.flow.log import Log
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job, Run

__all__ = ["log_abort", "log_end"]


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
        _log_end(log, engine, job, request, time)
        return True
    over = told.finish(job)
    if over:
        _log_end(log, engine, told, request, time)
    return over


def log_abort(log: Log, engine: int, jobs: Mapping[Job, Callable[[], object]], decodes: DecodeSet, steps: int,
              time: float) -> None:
    """Log which tokens of the *jobs* of a request users have when it is aborted: those of so many first *steps*.

    The values are who would have been told of their ends.
    """
    ended: ParentRequest | None = None
    for job, told in jobs.items():
        request, params, runs = job.request.id, job.kv_transfer_params, [*_until(decodes.emitted(job), steps)]
        if params is not None and params.do_remote_decode:
            continue
        if params is not None and params.handed_over and runs:
            log.add(Emitted(time, request, engine, runs[0].first, runs[0].first))
        if isinstance(told, ParentRequest):
            told.take(job, runs)
            ended = told
        else:
            _log_tokens(log, engine, runs, request, time)
    if ended is not None and not ended.at_once:
        _log_tokens(log, engine, ended.emitted, request, time, ended)


def _until(runs: Iterable[Run], steps: int) -> Iterator[Run]:
    """What is in *runs* of the engine's first *steps* steps."""
    for run in runs:
        if run.first < steps:
            every = run.every or 1
            yield evolve(run, last=min(run.last, run.first + (steps - 1 - run.first) // every * every))


def _log_end(log: Log, engine: int, ended: Job | ParentRequest, request: int, time: float) -> None:
    """Log the tokens of a sequence, or of all sequences of a *request*, which have *ended*."""
    several = ended if isinstance(ended, ParentRequest) else None
    _log_tokens(log, engine, ended.emitted, request, time, several)
    log.add(Finished(time, request, engine, ended.verified, ended.accepted, several.preemptions if several else 0))


def _log_tokens(log: Log, engine: int, runs: Iterable[Run], request: int, time: float,
                several: ParentRequest | None = None) -> None:
    for run in runs:
        log.add(Emitted(time, request, engine, run.first, run.last, run.every or 1, run.tokens))
    for step, sequences, length in several.decoded() if several else ():
        log.add(Decoded(time, request, engine, step, sequences, length))

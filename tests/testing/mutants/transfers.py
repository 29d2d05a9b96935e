"""Schedulers with a KV connector that each have one wrong line."""

from ksim.scheduling.connector import TransferState
from ksim.scheduling.connector_scheduler import ConnectorQueues, ConnectorScheduler
from ksim.testing.check_transfers import check_transfers
from tests.testing.mutants import Mutant, patched


class Remembering(ConnectorScheduler):
    """A scheduler whose memory of transfers is of the class `memory`."""

    memory: type[TransferState] = TransferState

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.transfers = self.memory(self.cache)


def mutant(name: str, what: str, broken: str, method: str, old: str, new: str, examples: int = 200) -> Mutant:
    kind = ConnectorScheduler if method in vars(ConnectorScheduler) else ConnectorQueues
    changed = patched(kind, method, old, new)
    scheduler = changed if kind is ConnectorScheduler else type(
        "BrokenConnectorScheduler", (ConnectorScheduler,), {method: vars(changed)[method]})
    return Mutant(name, what, broken, lambda only: check_transfers(scheduler, invariants=only, shrink=False,
                                                                   max_examples=examples))


def forgetful(name: str, what: str, broken: str, method: str, old: str, new: str) -> Mutant:
    scheduler = type("BrokenMemory", (Remembering,), {"memory": patched(TransferState, method, old, new)})
    return Mutant(name, what, broken, lambda only: check_transfers(scheduler, invariants=only, shrink=False))


MUTANTS = [
    mutant("loads_reserve_nothing", "a load leaves no room for other prompts", "loads_leave_room",
           "_load", "spare + self.transfers.reserved(extra)", "spare"),
    mutant("no_token_again", "the last token of a prompt that was loaded is not computed again", "loads_are_awaited",
           "_promote", "job.num_computed_tokens -= 1", "pass"),
    mutant("loaded_twice", "a prompt that was loaded is computed all the same", "loads_are_awaited",
           "_promote", "job.num_computed_tokens -= 1", "job.num_computed_tokens = 1"),
    mutant("load_not_awaited", "a request goes on before its load has ended", "loads_are_awaited",
           "_promote", "if job not in transfers.received:\n        return False\n    transfers.received.remove(job)",
           "transfers.received.discard(job)"),
    mutant("freed_under_a_load", "the blocks of an aborted request are freed while a load fills them",
           "loads_keep_blocks", "_free_or_hold", "if loads:", "if False:"),
    mutant("freed_before_sent", "blocks of a finished request are freed before they are sent", "sends_keep_blocks",
           "_finish", "if not held or", "if True or"),
    forgetful("never_freed", "blocks that were sent are never freed", "all_ends_once",
              "end_held", "self.cache.free(job.block_table)", "pass"),
    mutant("no_fence", "blocks are freed while a batch in flight computes on them", "computed_on_blocks_stay",
           "_release", "self._defers_frees and ", "False and "),
    mutant("fence_too_short", "blocks behind the fence are freed one batch too early", "computed_on_blocks_stay",
           "update", "free_deferred(schedule.number)", "free_deferred(schedule.number + 1)"),
    mutant("victim_in_flight", "a request is preempted while a batch in flight computes on its blocks",
           "computed_on_blocks_stay", "_preempt", "if self._defers_frees:", "if False:"),
    mutant("dropped_output_kept", "a preempted request gets tokens that it will compute again",
           "preempted_gain_nothing", "_takes", "self._dropped.get(job, -1) < self.decodes.returned", "True",
           examples=1500),
    mutant("spoilt_load_goes_on", "a request goes on though its load failed", "all_ends_once",
           "_fail", "job.state, job.failed = State.DONE, True", "job.state = State.DONE"),
]

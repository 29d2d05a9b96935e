"""Schedulers with SGLang's rules that each have one wrong line, and policies of one's own that are wrong on them."""

from ksim.kv.cache.radix import RadixCache
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.testing import check_policy, check_scheduler
from tests.testing.mutants import Mutant, patched
from tests.testing.mutants.policies import ByRequestId


def mutant(name: str, what: str, broken: str, method: str, old: str, new: str, policy: str = "fcfs") -> Mutant:
    return Mutant(f"sglang_{name}", what, broken, lambda only: check_scheduler(
        patched(SglangScheduler, method, old, new), policy=policy, invariants=only, shrink=False))


def cache(name: str, what: str, broken: str, method: str, old: str, new: str) -> Mutant:
    return Mutant(f"sglang_{name}", what, broken, lambda only: check_scheduler(
        SglangScheduler, cache=patched(RadixCache, method, old, new), invariants=only, shrink=False))


class NeverTheSame:
    """Retracts by what the job's hash happens to be."""

    def victim(self, running):
        return max(running, key=hash)


def advised(name: str, what: str, broken: str, kind: type) -> Mutant:
    return Mutant(f"sglang_{name}", what, broken,
                  lambda only: check_policy(kind, engine="sglang", invariants=only, shrink=False))


MUTANTS = [
    mutant("outputs_not_reserved", "nothing is reserved for the outputs of those that decode", "memory_reserved",
           "_admit_all", "beside + batch.expected(ratio, CLIP)", "beside"),
    mutant("stop_token_expected", "a job that ignores the stop token is expected to stop", "memory_reserved",
           "_admit_all", "batch.expected(ratio, CLIP)",
           "sum(min(job.limit - batch.sampled(job), CLIP) * ratio for job in batch.jobs)"),
    mutant("queue_always_seen", "the queue is looked at though the batch is full", "full_hides_queue",
           "_prefill", "if limits.preempts or not len(batch):", "if True:"),
    mutant("full_forgotten", "a job that finds no memory leaves no mark", "same_as_plain_scheduler",
           "_admit_all", "batch.full = bool(admitted.jobs) or bool(len(batch))", "pass"),
    mutant("full_for_good", "the batch stays full when a job leaves", "same_as_plain_scheduler",
           "_merge", "batch.drop(self._ended):\n        batch.full = False",
           "batch.drop(self._ended):\n        pass"),
    mutant("youngest_lead", "after a retraction, the youngest jobs come first", "order_after_retraction",
           "_retract_some", "batch.join(kept)", "batch.join(sorted(kept, key=lambda job: -job.number))"),
    mutant("longest_retracted", "the job with the longest output is retracted", "order_after_retraction",
           "_retract_some", "self.guard.victim(kept)", "kept[0]"),
    mutant("retracted_first", "who is retracted goes to the head of the queue", "retracted_wait_last",
           "_retract_some", "self._requeue(job)", "self.waiting.insert(0, job)"),
    mutant("retracted_lost", "who is retracted is not queued again", "nobody_lost",
           "_retract_some", "self._requeue(job)", "pass"),
    mutant("keeps_memory", "who is retracted keeps its memory", "pages_fit_tokens",
           "_retract", "self._give_back(job)", "self._rows -= 1"),
    mutant("token_in_flight_kept", "who is retracted gets its token in flight", "exact_tokens",
           "_retract", "job.num_computed_tokens, job.num_output_placeholders, job.cached = State.WAITING, 0, 0, 0",
           "job.num_computed_tokens, job.cached = State.WAITING, 0, 0"),
    mutant("abort_not_heeded", "an aborted job still waits", "nobody_lost",
           "abort", "(self._coming if job in self._coming else self._queue.jobs).remove(job)", "pass"),
    mutant("slot_too_many", "one job too many runs", "sequence_limit",
           "_places", "most = self.limits.max_running_requests", "most = self.limits.max_running_requests + 1"),
    mutant("chunks_beside_decodes", "chunks leave no room for the decodes beside them", "prompt_budget",
           "_admit_all", "limits.chunked_prefill_size - beside,", "limits.chunked_prefill_size,"),
    mutant("one_prompt_more", "a batch has one prompt more than it may", "prompt_budget",
           "_admit_all", ">= limits.prefill_max_requests", "> limits.prefill_max_requests"),
    mutant("head_skipped", "a job that does not fit is overtaken", "no_overtaking",
           "_admit_all", "batch.full = bool(admitted.jobs) or bool(len(batch))\n            break", "pass\n"
                         "            continue"),
    mutant("order_ignored", "jobs are admitted in the order in which they came", "no_overtaking",
           "_prefill", "self._queue.arrange(self._prefilled)", "pass", policy="shortest_prompt_first"),
    mutant("idle_every_third", "every third turn schedules nothing", "no_idle_step",
           "_holds_back", "if not self._held_turns:",
           "if self.steps % 3 == 0:\n        return not len(self.batch)\n    if not self._held_turns:"),
    cache("last_token_found", "a hit covers the last token", "hit_leaves_last_token",
          "look_up", "self._match(table, end)", "self._match(table, end + 1)"),
    cache("page_lost", "a request gives back a page too few", "all_blocks_return",
          "free", "self.blocks(table.num_slots) -", "max(self.blocks(table.num_slots) - 1, 0) -"),
    cache("prefix_unshared", "prefixes are never found again", "same_as_plain_scheduler",
          "look_up", "if not self.prefix_caching or", "if self._tick >= 0 or"),
    advised("by_request_id", "request ids decide the order", "names_do_not_matter", ByRequestId),
    advised("by_hash", "the order of a set decides who is retracted", "names_do_not_matter", NeverTheSame),
]

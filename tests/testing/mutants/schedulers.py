"""Schedulers that each have one wrong line."""

from ksim.scheduling.scheduler import Scheduler
from ksim.testing import check_scheduler
from tests.testing.mutants import Mutant, patched


def mutant(name: str, what: str, broken: str, method: str, old: str, new: str, policy: str = "fcfs") -> Mutant:
    return Mutant(name, what, broken, lambda only: check_scheduler(
        patched(Scheduler, method, old, new), policy=policy, starves=policy != "fcfs", invariants=only, shrink=False))


MUTANTS = [
    mutant("budget_overrun", "the token budget is one token too large", "token_budget",
           "_begin", "limits.max_num_batched_tokens", "limits.max_num_batched_tokens + 1"),
    mutant("slot_too_many", "one request too many is admitted", "sequence_limit",
           "_admit", ">= self.limits.active", "> self.limits.active"),
    mutant("slot_too_few", "the last sequence slot stays empty", "work_conserved",
           "_admit", ">= self.limits.active", "+ 1 >= self.limits.active > 1 or len(self.running) >= 1 == "
                                              "self.limits.active"),
    mutant("cap_ignored_in_prefill", "the chunk cap is ignored for running requests", "chunk_cap",
           "_extend", "self._cap, ", ""),
    mutant("cap_ignored_at_admission", "the chunk cap is ignored at admission", "chunk_cap",
           "_first_chunk", "wish, self._cap)", "wish)"),
    mutant("chunked_anyway", "prompts are chunked though chunked prefill is off", "whole_prompts",
           "_first_chunk", "not self.limits.enable_chunked_prefill and ", "False and "),
    mutant("watermark_ignored", "the watermark is ignored", "watermark_kept",
           "_has_room", "self._spare if self.running else 0", "0"),
    mutant("reserve_ignored", "a request is admitted though its whole prompt does not fit", "whole_prompt_reserved",
           "_has_room", "self.limits.scheduler_reserve_full_isl and ", "False and "),
    mutant("too_few_blocks", "no block is allocated for the last token", "blocks_fit_tokens",
           "_extend", "computed + tokens):", "computed + tokens - 1):"),
    mutant("leak_at_preemption", "a preempted request keeps its blocks", "waiting_hold_nothing",
           "_preempt", "self.cache.free(victim.block_table)", "pass"),
    mutant("leak_at_abort", "an aborted request keeps its blocks", "waiting_hold_nothing",
           "abort", "self._release(job)", "pass"),
    mutant("freed_twice_at_end", "blocks are freed twice", "blocks_conserved",
           "_finish", "job.state = State.DONE",
           "job.state = State.DONE; self.cache.pool.to_back(range(self.cache.capacity))"),
    mutant("computed_not_reset", "a preempted request resumes without computing its tokens again", "blocks_fit_tokens",
           "_start", "State.RUNNING, computed, computed",
           "State.RUNNING, max(computed, job.num_tokens - tokens) if job.preemptions else computed, computed"),
    mutant("lost_resumed_token", "a preempted request loses its last token", "preemption_keeps_tokens",
           "_preempt", "victim.preemptions += 1",
           "victim.preemptions += 1; victim.num_tokens -= victim.num_tokens > victim.request.prompt"),
    mutant("token_twice", "a sampled token is delivered twice", "exact_tokens",
           "_deliver", "job.emit(1, index)", "job.emit(1, index); job.emit(1, index)"),
    mutant("stop_not_honoured", "a stop token does not end a request", "exact_tokens",
           "_deliver", "job.sampled >= job.output", "job.sampled >= job.limit"),
    mutant("due_counted_twice", "output placeholders of asynchronous scheduling are counted twice", "tokens_in_order",
           "_conclude", "job.num_output_placeholders += entry.samples and ahead",
           "job.num_output_placeholders += 2 * (entry.samples and ahead)"),
    mutant("not_requeued", "a preempted request is never queued again", "nobody_lost",
           "_conclude", "self.waiting.put_back(job)", "pass"),
    mutant("requeued_last", "a preempted request goes to the end of the queue", "no_overtaking",
           "_conclude", "self.waiting.put_back(job)", "self.waiting.add(job)"),
    mutant("stays_in_queue", "a finished request is queued again", "nobody_lost",
           "_finish", "self.running.remove(job)", "self.running.remove(job); self.waiting.add(job)"),
    mutant("head_skipped", "a request that does not fit is overtaken by later ones", "no_overtaking",
           "_schedule_in_order", "not self._admit(job, ALL)", "(self._admit(job, ALL), False)[1]"),
    mutant("resumes_at_once", "a preempted request is admitted again while its tokens are in flight",
           "nothing_in_flight_when_admitted", "_admit", "self.decodes.awaits(job)", "False"),
    mutant("partial_chunks_forgotten", "a preempted request does not wait for its prompt chunks in flight",
           "nothing_in_flight_when_admitted", "_admit", "self.decodes.awaits(job)",
           "job.decoding and self.decodes.awaits(job)"),
    mutant("admits_after_preemption", "requests are admitted in a step that preempts", "no_admission_after_preemption",
           "_admit", "self.latest.preempted or ", ""),
    mutant("one_admission_a_step", "a step admits only one request", "work_conserved",
           "_schedule_in_order", "for job in self.waiting:", "for job in list(self.waiting)[:1]:"),
    mutant("idle_every_third", "every third step schedules nothing", "no_idle_step",
           "_schedule_in_order", "if not self._budget:",
           "if not self._budget or (self.steps % 3 == 0 and job.sampled == 0):"),
    mutant("youngest_starves_eldest", "the last request in the queue comes first", "bounded_wait",
           "_conclude", "for job in schedule.admitted:\n        self.waiting.remove(job)",
           "for job in schedule.admitted:\n        self.waiting.remove(job)\n    for job in sorted(self.waiting, "
           "key=lambda job: job.number):\n        self.waiting.put_back(job)"),
    mutant("wrong_victim", "the first running request is preempted, not the last", "same_as_plain_scheduler",
           "_preempt", "self.guard.victim(self.running)", "self.running[0]"),
    mutant("sets_decide", "running requests are ordered by their hash", "names_do_not_matter",
           "_conclude", "for job in schedule.preempted:", "self.running[:] = sorted(self.running, key=lambda "
           "job: (job.in_decode_set is False, hash(job) if not job.in_decode_set else 0)) if "
           "self.decodes.length == 0 else self.running\n    for job in schedule.preempted:"),
    mutant("batch_twice", "a running request is in the batch twice", "one_share_each",
           "_conclude", "for job in schedule.admitted:", "self.latest.entries += self.latest.entries[:1] if "
           "self._budget else []\n    for job in schedule.admitted:"),
    mutant("time_backwards", "a step number is skipped", "counters_grow",
           "_begin", "self.steps += 1", "self.steps += 1 + (self.steps == 3)"),
]

"""Hypothesis strategies for cases.  They shrink towards few requests with few tokens that arrive together."""

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from ksim.scheduling.sglang.limits import INPUT_MARGIN, SGLANG_ORDERS
from ksim.testing.trial import Arrival, Case

Arrivals = st.SearchStrategy[list[Arrival]]


def requests(*, turns: int = 30, prompt: int = 40, output: int = 25, stops: bool = True, priorities: bool = True,
             private: bool = True) -> st.SearchStrategy[Arrival]:
    """One request.  With *stops* its output may end early; with *private* it may not read the prefix cache."""
    return st.builds(
        Arrival, turn=st.integers(0, turns), prompt=st.integers(1, prompt), output=st.integers(1, output),
        overrun=st.sampled_from([0, 0, 1, 5] if stops else [0]), priority=st.integers(0, 2 if priorities else 0),
        family=st.integers(0, 3), reads_cache=st.sampled_from([True, True, True, False] if private else [True]))


def bursts(**kinds: Any) -> Arrivals:
    """Many requests at the same time."""
    return st.lists(requests(turns=0, **kinds), min_size=2, max_size=12)


def equals() -> Arrivals:
    """The same request several times."""
    return st.builds(lambda arrival, count: [arrival] * count, requests(turns=3, stops=False, private=False,
                                                                       priorities=False), st.integers(2, 8))


def long_tailed(**kinds: Any) -> Arrivals:
    """Many short requests and a few that are much longer."""
    short = st.lists(requests(prompt=6, output=4, **kinds), min_size=1, max_size=8)
    tail = st.lists(requests(prompt=150, output=40, **kinds), min_size=1, max_size=2)
    return st.builds(lambda some, few: some + few, short, tail)


def adversarial(block_tokens: int, **kinds: Any) -> Arrivals:
    """Lengths of one token, of whole blocks, and of one token more or less."""
    edges = [1, *(blocks * block_tokens + off for blocks in (1, 2, 3) for off in (0, 1, -1))]
    lengths = st.sampled_from(sorted({edge for edge in edges if edge > 0}))
    one = st.tuples(requests(**kinds), lengths, lengths).map(lambda drawn: _sized(*drawn))
    return st.lists(one, min_size=1, max_size=8)


def crowds() -> Arrivals:
    """Requests whose outputs are longer than their prompts, about the same time: memory runs out while they decode."""
    one = st.builds(Arrival, turn=st.integers(0, 4), prompt=st.integers(1, 12), output=st.integers(12, 25),
                    overrun=st.sampled_from([0, 0, 3]), priority=st.integers(0, 2), family=st.integers(0, 9))
    return st.lists(one, min_size=4, max_size=12)


def streams() -> Arrivals:
    """One long request of low priority among an endless stream of small ones: a test of starvation."""
    small = st.builds(Arrival, turn=st.just(0), prompt=st.integers(1, 3), output=st.integers(1, 3))
    return st.builds(_stream, small, prompt=st.integers(4, 12), count=st.integers(40, 80))


def workloads(block_tokens: int, *, stops: bool = True, priorities: bool = True, private: bool = True) -> Arrivals:
    """Arrivals of any kind."""
    kinds = {"stops": stops, "priorities": priorities, "private": private}
    return st.one_of(st.lists(requests(**kinds), min_size=1, max_size=12), bursts(**kinds),
                     adversarial(block_tokens, **kinds), equals(), long_tailed(**kinds))


def settings(block_tokens: int, longest_prompt: int, *, valid: bool = True,
             pipelines: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Settings of an engine except its number of blocks.

    With *valid*, `vllm serve` would accept them.
    """
    return st.builds(_settings, st.fixed_dictionaries({
        "max_model_len": st.sampled_from([1000, 1000, longest_prompt + 3, longest_prompt + 1]),
        "max_num_seqs": st.sampled_from([1, 2, 4, 100]),
        "max_num_batched_tokens": st.sampled_from([3, 5, 16, 50, 1000]),
        "block_tokens": st.just(block_tokens),
        "prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 4, 10]),
        "long_prefill_token_threshold_adaptive": st.booleans(),
        "scheduler_reserve_full_isl": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.0, 0.2]),
        "pipeline_parallel_size": st.sampled_from([1, 1, 2, 3] if pipelines else [1]),
        "prefill_schedule_interval": st.sampled_from([1, 1, 3] if pipelines else [1]),
        "enable_chunked_prefill": st.sampled_from([True, True, False] if valid else [True]),
    }), st.just(valid))


def starved(block_tokens: int, longest: int) -> st.SearchStrategy[int]:
    """The blocks that the longest request needs, and a few more."""
    return st.integers(0, 20).map(lambda more: -(-(longest + 1) // block_tokens) + more)


@st.composite
def cases(draw: st.DrawFn, *, aborts: bool = True, pipelines: bool = True, valid: bool = True,
          starving: bool = True) -> Case:
    """Any case that a real engine would accept: each request fits the cache when it is alone."""
    block_tokens = draw(st.sampled_from([4, 1, 2, 7, 16]))
    arrivals = tuple(draw(workloads(block_tokens) if not starving else st.one_of(workloads(block_tokens), streams())))
    return _case(draw, arrivals, block_tokens, valid=valid, pipelines=pipelines, aborts=aborts)


@st.composite
def replayable_cases(draw: st.DrawFn, *, starving: bool = True) -> Case:
    """Cases that a scenario file can hold: no aborts, no stop tokens, and not both prefixes and priorities."""
    block_tokens, shares = draw(st.sampled_from([4, 1, 2, 7, 16])), draw(st.booleans())
    some = workloads(block_tokens, stops=False, private=False, priorities=not shares)
    arrivals = tuple(draw(st.one_of(some, streams()) if starving and not shares else some))
    case = _case(draw, arrivals, block_tokens, valid=True, pipelines=False, aborts=False)
    replayable = {"prefix_caching": shares, "long_prefill_token_threshold_adaptive": False}
    return Case(case.settings | replayable, arrivals, named_outputs=False)


#: Settings under which SGLang's scheduler admits more than memory will do for.
CROWDED = {"schedule_conservativeness": 0.02, "max_running_requests": 8, "max_queued_requests": None}


@st.composite
def sglang_cases(draw: st.DrawFn, *, aborts: bool = True, starving: bool = True) -> Case:
    """Any case that SGLang's scheduler would accept: each request fits the cache when it is alone.

    In half of the cases more are admitted than fit in the end, so that some are retracted.  Without a prefix cache and
    with pages, either all ignore the stop token or none: SGLang would cut two prompts of one batch, and sample from the
    first of them too soon (schedule_policy.py, `add_one_req_ignore_eos`).
    """
    page, crowded = draw(st.sampled_from([1, 4, 16])), draw(st.booleans())
    some = workloads(page, private=False)
    arrivals = draw(crowds() if crowded else st.one_of(some, streams()) if starving else some)
    ignoring = draw(st.sampled_from([False, False, True]))
    settings = draw(sglang_settings(page))
    if ignoring and page > 1 and not settings["prefix_caching"]:
        arrivals = [evolve(arrival, overrun=0) for arrival in arrivals]
    arrivals = [evolve(arrival, ignore_eos=ignoring and not arrival.overrun) for arrival in arrivals]
    longest = max(a.prompt + a.output + a.overrun for a in arrivals)
    fits = -(-(longest + 2 * page + INPUT_MARGIN) // page)
    more = st.integers(0, 2 * fits) if crowded else st.integers(0, 20) | st.just(1000)
    sizes = {"block_tokens": page, "blocks": fits + draw(more),
             "context_length": draw(st.sampled_from([1000, longest + INPUT_MARGIN + 2]))}
    drops = st.tuples(st.integers(0, 50), st.integers(0, len(arrivals) - 1), st.booleans())
    return Case(settings | sizes | (CROWDED if crowded else {}), tuple(arrivals),
                tuple(draw(st.lists(drops, max_size=3 if aborts else 0))))


def sglang_settings(page: int) -> st.SearchStrategy[dict[str, Any]]:
    """Settings of SGLang's scheduler that it would start with, except the sizes of its cache."""
    chunks = st.sampled_from([8192, 20, 32, 20, -1])
    return st.fixed_dictionaries({
        "max_running_requests": st.sampled_from([100, 4, 100, 1, 2]),
        "chunked_prefill_size": chunks.map(lambda size: size if size < 0 else -(-size // page) * page),
        "max_prefill_tokens": st.sampled_from([16384, 16384, 20, 150]),
        "schedule_policy": st.sampled_from(["fcfs", "fcfs", *SGLANG_ORDERS]),
        "schedule_conservativeness": st.sampled_from([0.02, 0.02, 0.3, 1.0]),
        "retraction_policy": st.sampled_from(["length", "length", "priority"]),
        **{name: st.booleans() for name in ("prefix_caching", "disable_overlap_schedule", "enable_mixed_chunk",
                                            "enable_priority_scheduling", "disable_priority_preemption")},
    }, optional={
        "max_queued_requests": st.sampled_from([1, 4]),
        "priority_scheduling_preemption_threshold": st.just(0),
        "schedule_low_priority_values_first": st.just(True),
        "prefill_max_requests": st.sampled_from([1, 2]),
        "prefill_decode_interval": st.sampled_from([1, 3]),
        "prefill_decode_interval_min_bs": st.just(2),
        "min_free_slots_delay": st.sampled_from([1, 2]),
    }).map(_sglang_settings)


def _sglang_settings(drawn: dict[str, Any]) -> dict[str, Any]:
    """*drawn* without what SGLang refuses together; and chunks have room for some tokens beside those that decode."""
    orders = ["fcfs", "lof"] if drawn["enable_priority_scheduling"] else [*SGLANG_ORDERS]
    if not drawn["prefix_caching"] and drawn["schedule_policy"] == "shortest-prefill-first":
        orders = ["fcfs"]
    policy, mixes = drawn["schedule_policy"], drawn["enable_mixed_chunk"] and drawn["chunked_prefill_size"] > 0
    return drawn | {"schedule_policy": policy if policy in orders else "fcfs", "enable_mixed_chunk": mixes,
                    "max_running_requests": min(drawn["max_running_requests"], 8 if mixes else 100)}


def _case(draw: st.DrawFn, arrivals: tuple[Arrival, ...], block_tokens: int, *, valid: bool, pipelines: bool,
          aborts: bool) -> Case:
    drawn = draw(settings(block_tokens, max(a.prompt for a in arrivals), valid=valid, pipelines=pipelines))
    longest = Case(drawn, arrivals).longest
    blocks = draw(st.one_of(starved(block_tokens, longest), st.just(1000)))
    drops = st.tuples(st.integers(0, 50), st.integers(0, len(arrivals) - 1), st.booleans())
    return Case(drawn | {"blocks": blocks}, arrivals, tuple(draw(st.lists(drops, max_size=3 if aborts else 0))))


def _settings(drawn: dict[str, Any], valid: bool) -> dict[str, Any]:
    if not valid:
        return drawn
    budget = max(drawn["max_num_batched_tokens"], min(drawn["max_num_seqs"], 4))
    if not drawn["enable_chunked_prefill"]:
        budget = max(budget, drawn["max_model_len"])
    return drawn | {"max_num_batched_tokens": budget, "max_num_seqs": min(drawn["max_num_seqs"], budget)}


def _sized(arrival: Arrival, prompt: int, output: int) -> Arrival:
    return Arrival(arrival.turn, prompt, output, arrival.overrun, arrival.priority, arrival.family, arrival.reads_cache)


def _stream(small: Arrival, prompt: int, count: int) -> list[Arrival]:
    """The long request arrives while a small one runs; two small ones arrive in every step."""
    return [small, Arrival(0, prompt, 2, priority=2, family=1),
            *(Arrival(turn // 2, small.prompt, small.output, family=2) for turn in range(count))]

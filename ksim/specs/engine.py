"""Engine versions: the defaults of a release, and the decisions in which releases differ."""

from collections.abc import Mapping

from attrs import field, frozen, validators

from ksim.foundation.units import quantity


@frozen
class Step:
    """Most tokens and most sequences in a step."""

    tokens: int = field(validator=validators.gt(0))
    sequences: int = field(validator=validators.gt(0))


@frozen
class Budget:
    """The limits of a step, by usage, on GPUs with at least `memory` bytes and no `exception` in their name."""

    memory: float = field(converter=quantity, validator=validators.ge(0))
    openai_api_server: Step
    llm_class: Step
    exception: str = ""

    def applies(self, gpu: str, memory: float) -> bool:
        """Whether the budget is for a GPU of this name and memory in bytes."""
        return memory >= self.memory and not (self.exception and self.exception in gpu.lower())


@frozen
class EngineVersion:
    """A release's defaults, and the decisions in which releases differ; the data files say what each means.

    `block_size` is the default; the attention kernels take blocks of any multiple of `block_multiple` tokens.
    `paces` are how long kernels of its libraries take, by "family/format of weights", over what profiles say of vLLM's;
    those in `ceilings` take at most so many times the roofline.
    """

    name: str
    unhashed_blocks_first: bool
    cap_binds_lone_request: bool
    self_preemption_ends_turn: bool
    scheduler_reserve_full_isl: bool
    block_size: int
    unknown_settings: tuple[str, ...]
    budgets: tuple[Budget, ...] = field(validator=validators.min_len(1))
    source: str
    paces: Mapping[str, float] = field(factory=dict)
    ceilings: Mapping[str, float] = field(factory=dict)
    block_multiple: int = field(default=1, validator=validators.gt(0))

    def step(self, usage: str, gpu: str, memory: float) -> Step:
        """The limits of a step for *usage*, which names a field of `Budget`.

        The last of `budgets` must apply to all GPUs.
        """
        found: Step = getattr(next(budget for budget in self.budgets if budget.applies(gpu, memory)), usage)
        return found

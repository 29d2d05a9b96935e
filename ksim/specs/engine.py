"""Engine versions: the defaults of a release, and the decisions in which releases differ."""

from collections.abc import Mapping

from attrs import field, frozen, validators

from ksim.foundation.units import quantity
from ksim.specs.settings import EngineSettings


@frozen
class Step:
    """Most tokens and most sequences in a step."""

    tokens: int = field(validator=validators.gt(0))
    sequences: int = field(validator=validators.gt(0))


@frozen
class Budget:
    """The limits of a step, by usage, on GPUs with at least `memory` bytes and no `exception` in their name.

    `largest_graph` is the most tokens of a step that decodes for which a CUDA graph is captured, where one to three
    GPUs share every layer, and where more do.
    """

    memory: float = field(converter=quantity, validator=validators.ge(0))
    openai_api_server: Step
    llm_class: Step
    exception: str = ""
    largest_graph: tuple[int, int] = (512, 512)

    def applies(self, gpu: str, memory: float) -> bool:
        """Whether the budget is for a GPU of this name and memory in bytes."""
        return memory >= self.memory and not (self.exception and self.exception in gpu.lower())

    def graph(self, settings: EngineSettings) -> int:
        """The largest CUDA graph of an engine with *settings*, by the GPUs of its tensor-parallel ranks."""
        return self.largest_graph[settings.tensor_parallel_size * settings.data_parallel_size > 3]


@frozen
class EngineVersion:
    """A release's defaults, and the decisions in which releases differ; the data files say what each means.

    `gpu_memory_utilization` is vLLM's default, and `free_gpu_memory_fraction` TensorRT-LLM's; an engine with neither
    reserves memory as SGLang does.  One that `starts_with_less_cache` than a request of the model's whole context takes
    refuses longer requests; the others do not start.  `state_prefix_caching` says whether prefixes are cached by
    default where layers have states, and `graph_of_max_num_seqs` whether a CUDA graph holds exactly so many sequences.
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
    gpu_memory_utilization: float | None = None
    free_gpu_memory_fraction: float | None = None
    state_prefix_caching: bool = True
    starts_with_less_cache: bool = False
    graph_of_max_num_seqs: bool = False
    paces: Mapping[str, float] = field(factory=dict)
    ceilings: Mapping[str, float] = field(factory=dict)
    block_multiple: int = field(default=1, validator=validators.gt(0))

    def budget(self, gpu: str, memory: float) -> Budget:
        """The budget of a GPU of this name and memory in bytes; the last of `budgets` must apply to all GPUs."""
        return next(budget for budget in self.budgets if budget.applies(gpu, memory))

    def step(self, usage: str, gpu: str, memory: float) -> Step:
        """The limits of a step for *usage*, which names a field of `Budget`."""
        found: Step = getattr(self.budget(gpu, memory), usage)
        return found

"""The host: CPU time for every request and every step of an engine."""

from bisect import bisect_right
from typing import Any

from attrs import NOTHING, Attribute, field, frozen, validators

from ksim.foundation.units import quantity


def _seconds(default: Any = NOTHING) -> float:
    cost: float = field(default=default, converter=quantity, validator=validators.ge(0))
    return cost


@frozen
class Client:
    """The front end: seconds for each request on its way in, and for each step's tokens on their way out.

    Requests are accepted one after the other, which takes `accept` each.  A request reaches the engine `travel`
    later, plus `travel_token` for each prompt token (tokenizing, validating, serializing).  The tokens of a step
    reach the users `deliver` after the engine hands them over, plus `deliver_sequence` for each sequence.  One process
    takes `stream` for each token, one after the other: no more tokens than that leaves time for reach the users.
    """

    accept: float = _seconds()
    travel: float = _seconds()
    travel_token: float = _seconds()
    deliver: float = _seconds()
    deliver_sequence: float = _seconds()
    stream: float = _seconds(0.0)


@frozen
class Core:
    """The engine's loop: seconds to make a batch, and to process its sampled tokens.

    `wake` applies when a request arrives at an engine without work.  Making a batch takes `schedule`, plus
    `schedule_sequence` for each sequence and `schedule_block` for each new KV block.  Processing its tokens takes
    `update`, plus `update_sequence` for each sequence that sampled.  `send` applies where workers are processes of
    their own.
    """

    wake: float = _seconds()
    schedule: float = _seconds()
    schedule_sequence: float = _seconds()
    schedule_block: float = _seconds()
    update: float = _seconds()
    update_sequence: float = _seconds()
    send: float = _seconds()

    def making(self, sequences: int, blocks: int, workers: int) -> float:
        """Seconds until *workers* have a batch with so many sequences and new KV blocks."""
        made = self.schedule + self.schedule_sequence * sequences + self.schedule_block * blocks
        return made + (self.send if workers > 1 else 0.0)

    def taking(self, samples: int) -> float:
        """Seconds to process the tokens that so many sequences sampled."""
        return self.update + self.update_sequence * samples


@frozen
class Worker:
    """The process that drives a GPU: seconds to prepare a step's inputs, and to launch its kernels.

    GPUs start when the inputs are ready, after `prepare` plus `prepare_sequence` for each sequence.  `replay`
    launches a whole step as one CUDA graph.  With piecewise graphs, each layer's attention and the graph after it
    take `piece`.  Without graphs, each kernel takes `compiled` if torch.compile made the code, else `eager`; each
    grouped GEMM of experts takes `experts` more.  What prompts do in a layer of gated delta rules are a dozen kernels
    of Triton's, never in a graph: they take `states` more.  Where a library plans GEMMs in NVFP4 anew for each number
    of rows, as cuDNN does, the first GEMM of each shape of weights takes `plan` more outside of graphs: prompts hardly
    ever have as many tokens as others had.
    """

    prepare: float = _seconds()
    prepare_sequence: float = _seconds()
    replay: float = _seconds()
    piece: float = _seconds()
    compiled: float = _seconds()
    eager: float = _seconds()
    experts: float = _seconds()
    states: float = _seconds(0.0)
    plan: float = _seconds(0.0)

    def preparing(self, sequences: int) -> float:
        """Seconds to prepare the inputs of a step of so many sequences."""
        return self.prepare + self.prepare_sequence * sequences


@frozen
class Inputs:
    """GPU time that the host adds to a step.

    `copy` and `copy_sequence` copy the inputs, once a step and for each sequence.  `gap` is the time between two
    kernels that are not in the same CUDA graph.
    """

    copy: float = _seconds()
    copy_sequence: float = _seconds()
    gap: float = _seconds()


@frozen
class Pace:
    """How many times as long as a host states its engine takes: `factors`, each from its moment of `since` on.

    They hold for `Core` and `Worker`, which share CPUs with whatever else runs there; the front end is a process of its
    own.  Moments are seconds from the start of the run, in order.  Before the first, its factor holds.
    """

    factors: tuple[float, ...] = field(
        default=(1.0,), validator=(validators.min_len(1), validators.deep_iterable(validators.gt(0))))
    since: tuple[float, ...] = field(default=(0.0,))

    @since.validator
    def _in_order(self, _: "Attribute[tuple[float, ...]]", since: tuple[float, ...]) -> None:
        if len(since) != len(self.factors) or list(since) != sorted(since):
            raise ValueError(f"expected a moment for each of the {len(self.factors)} factors, in order, not {since}")

    def at(self, moment: float) -> float:
        """The factor at *moment*."""
        if len(self.factors) == 1:
            return self.factors[0]
        return self.factors[max(bisect_right(self.since, moment) - 1, 0)]


@frozen
class Host:
    """A server's CPUs and the engine software on them."""

    name: str
    client: Client
    core: Core
    worker: Worker
    inputs: Inputs
    source: str
    pace: Pace = Pace()

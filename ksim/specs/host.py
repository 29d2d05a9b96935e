"""The host: what CPUs add to every request and every step of an engine."""

from attrs import field, frozen, validators

from ksim.foundation.units import quantity


def _seconds() -> float:
    cost: float = field(converter=quantity, validator=validators.ge(0))
    return cost


@frozen
class Client:
    """The front end, which talks to users: seconds for each request on its way in, and for each step's tokens out.

    Requests are accepted one after the other, `accept` each, and reach the engine `travel` later, `travel_token` more
    for each token of the prompt (tokenizing, validating, serializing).  The tokens of a step reach the users
    `deliver` after the engine gave them away, and `deliver_sequence` more for each sequence among them.
    """

    accept: float = _seconds()
    travel: float = _seconds()
    travel_token: float = _seconds()
    deliver: float = _seconds()
    deliver_sequence: float = _seconds()


@frozen
class Core:
    """The engine's loop: seconds to make a batch, and to take its tokens in.

    `wake` where it had nothing to do and a request comes; `schedule` once a step, `schedule_sequence` and
    `schedule_block` for each sequence and each KV block that is new; `update` once, `update_sequence` for each
    sequence that sampled; `send` where workers are processes of their own.
    """

    wake: float = _seconds()
    schedule: float = _seconds()
    schedule_sequence: float = _seconds()
    schedule_block: float = _seconds()
    update: float = _seconds()
    update_sequence: float = _seconds()
    send: float = _seconds()

    def making(self, sequences: int, blocks: int, workers: int) -> float:
        """Seconds until *workers* know of a batch of so many sequences, and new KV blocks."""
        made = self.schedule + self.schedule_sequence * sequences + self.schedule_block * blocks
        return made + (self.send if workers > 1 else 0.0)

    def taking(self, samples: int) -> float:
        """Seconds to take in the tokens that so many sequences sampled."""
        return self.update + self.update_sequence * samples


@frozen
class Worker:
    """The process that drives a GPU: seconds to prepare a step's inputs, and to launch its kernels.

    GPUs can start once inputs are prepared, `prepare` and `prepare_sequence` for each sequence.  `replay` launches
    a whole step as one CUDA graph.  Otherwise attention is launched by itself: `piece` for each layer of it and the
    graph that follows; or every kernel is, `compiled` each where torch.compile has made the code, `eager` each where
    not, and `experts` more for each grouped product of experts.
    """

    prepare: float = _seconds()
    prepare_sequence: float = _seconds()
    replay: float = _seconds()
    piece: float = _seconds()
    compiled: float = _seconds()
    eager: float = _seconds()
    experts: float = _seconds()

    def preparing(self, sequences: int) -> float:
        """Seconds to prepare the inputs of a step of so many sequences."""
        return self.prepare + self.prepare_sequence * sequences


@frozen
class Inputs:
    """What the host has the GPU do beside the model: `copy` its inputs once a step, `copy_sequence` for each sequence,
    and the `gap` between two kernels that no graph holds together."""

    copy: float = _seconds()
    copy_sequence: float = _seconds()
    gap: float = _seconds()


@frozen
class Host:
    """A server's CPUs with an engine's software on them."""

    name: str
    client: Client
    core: Core
    worker: Worker
    inputs: Inputs
    source: str

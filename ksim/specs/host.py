"""The host: what the CPU adds to every step of an engine."""

from attrs import field, frozen, validators

from ksim.foundation.units import quantity


@frozen
class Host:
    """Seconds of CPU work around one step, on the engine's own thread.

    Before the GPUs can start: `schedule` once and `schedule_sequence` for each
    sequence in the batch, then `launch`.  When they are done, before the tokens
    are out: `output` once and `output_sequence` for each sequence that sampled.
    """

    name: str
    schedule: float = field(converter=quantity, validator=validators.ge(0))
    schedule_sequence: float = field(converter=quantity, validator=validators.ge(0))
    launch: float = field(converter=quantity, validator=validators.ge(0))
    output: float = field(converter=quantity, validator=validators.ge(0))
    output_sequence: float = field(converter=quantity, validator=validators.ge(0))
    source: str

    def before(self, sequences: int) -> float:
        """Seconds from the start of a turn until the GPUs have work."""
        return self.schedule + self.schedule_sequence * sequences + self.launch

    def after(self, samples: int) -> float:
        """Seconds from the end of the GPUs' work until the tokens are out."""
        return self.output + self.output_sequence * samples

"""What a gateway estimates of the prefills that it has sent: how long each takes alone, and which are not done."""

from collections.abc import Mapping

from attrs import define, field

from ksim.cluster.forecast import StepModel

__all__ = ["PrefillQueues"]


@define
class PrefillQueues:
    """The seconds of prefill that each engine has before it, by the numbers of engines and the ids of requests.

    As in Mooncake (section 6.1), a prefill takes what a model says that was fitted offline, from the prompt's length
    and how much of it is cached, and a queue takes the sum of its prefills.  One that runs counts in full until its
    first token comes.
    """

    models: Mapping[int, StepModel] = field(factory=dict)
    _seconds: dict[int, dict[int, float]] = field(factory=dict, init=False)
    _sums: dict[int, float] = field(factory=dict, init=False)

    def queue(self, engine: int) -> float:
        """Seconds until *engine* can begin with another prompt."""
        return self._sums.get(engine, 0.0)

    def prefill(self, engine: int, prompt: int, cached: int) -> float:
        """Seconds in which *engine* computes a *prompt* of which it has so many tokens *cached*."""
        cached = min(cached, prompt - 1)
        return self.models[engine].prefill(prompt - cached, cached)

    def add(self, engine: int, request: int, seconds: float) -> None:
        """Note that a *request* whose prefill takes so many *seconds* is sent to *engine*."""
        self.remove(engine, request)
        self._seconds.setdefault(engine, {})[request] = seconds
        self._sums[engine] = self._sums.get(engine, 0.0) + seconds

    def remove(self, engine: int, request: int) -> None:
        """Note that the prefill of a *request* is done."""
        own = self._seconds.get(engine)
        if own and request in own:
            self._sums[engine] -= own.pop(request)
            if not own:
                self._sums[engine] = 0.0

    def clear(self, engine: int) -> None:
        """Note that *engine* has nothing to do."""
        self._seconds.pop(engine, None)
        self._sums.pop(engine, None)

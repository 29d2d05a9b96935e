"""Processes of one's own, which listen to a run and interfere: `[ranks] processes`.

A process is a generator, as SimPy runs them, which is given the environment, the `Played` fleet and the log.  It may
wait for any event, read what has happened so far, slow a GPU, delay its host, narrow its links, or send requests:

    def throttle(env, fleet, log):
        yield env.timeout(2.0)
        fleet.slow(3, speed=0.5)

A scenario names it ``package.module:throttle``.  It ends with the run, whatever it waits for.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ksim.engine.engine import Engine
from ksim.engine.rank_processes import Rank
from ksim.engine.rank_stages import RankStages
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, KsimError

if TYPE_CHECKING:
    from ksim.simulation.features import RunningFleet

__all__ = ["Played", "start"]

#: The first number of requests that processes send: traces have none as large.
FIRST = 10**12


@define(eq=False)
class Played:
    """A fleet while it is simulated, as a process of one's own sees it; GPUs have their numbers in the fleet."""

    _running: "RunningFleet"
    _ids: Iterator[int] = field(factory=lambda: count(FIRST), init=False)

    @property
    def engines(self) -> Sequence[Engine]:
        """Its engines, in the order of their numbers."""
        return [engine for engine in self._running.cluster.engines if isinstance(engine, Engine)]

    def slow(self, gpu: int, speed: float) -> None:
        """From now on, have kernels of *gpu* run at *speed*, over that of the others; raises ConfigError for 0."""
        self._rank(gpu).speed = _positive("speed", speed)

    def delay(self, gpu: int, seconds: float) -> None:
        """From now on, have the host of *gpu* launch each step later by so many *seconds*."""
        if not seconds >= 0:
            raise ConfigError("delay", f"{seconds} are no seconds; give 0 or more")
        self._rank(gpu).delay = seconds

    def narrow(self, gpu: int, share: float) -> None:
        """From now on, let collectives have that *share* of the bandwidth of the links of *gpu*.

        Raises ConfigError for 0: over a link that is gone, they would never end.
        """
        self._rank(gpu).link = _positive("share", share)

    def send(self, prompt: int, output: int, **more: Any) -> int:
        """Send a request now; return its number.  *more* are fields of `ksim.flow.request.Request`."""
        request = Request(next(self._ids), self._running.env.now, prompt, output, **more)
        self._running.cluster.send(request, lambda: None)
        return request.id

    def _rank(self, gpu: int) -> Rank:
        """The rank on *gpu*; raises ConfigError where there is none."""
        pipelines = ((engine.number, getattr(engine, "stages", None)) for engine in self.engines)
        ranks = {gpu: rank for number, stages in pipelines if isinstance(stages, RankStages)
                 for stage in stages.stages for rank in stage.lanes[number].ranks for gpu in rank.gpus}
        if gpu not in ranks:
            raise ConfigError("gpu", f"no engine runs on GPU {gpu}; engines have GPUs {min(ranks)} to {max(ranks)}")
        return ranks[gpu]


def _positive(what: str, value: float) -> float:
    if not value > 0:
        raise ConfigError(what, f"{value} is not above 0")
    return value


def start(choices: Sequence[Choice], running: "RunningFleet") -> None:
    """Start the processes that *choices* name; raises ConfigError for what is none."""
    for choice in choices:
        if ":" not in choice.name:
            raise ConfigError("ranks.processes", f"{choice.name!r} names no function; write package.module:function")
        made: Callable[..., Any] = plugin("ranks.processes", choice)
        process = made(running.env, Played(running), running.log)
        if not isinstance(process, Generator):
            raise ConfigError("ranks.processes", f"{choice.name} is no generator; it has to wait for an event with"
                                                 " yield, such as env.timeout(1.0)")
        running.env.process(_driven(choice.name, process, running))


def _driven(name: str, process: Generator[Any, Any, Any], running: "RunningFleet") -> Any:
    """Run *process* until it ends or the run is over; raises KsimError, with its *name*, for what it raises."""
    value = None
    while True:
        try:
            event = process.send(value)
        except StopIteration:
            return
        except KsimError as error:
            raise KsimError(f"process {name}: {error}") from None
        except Exception as error:
            at = f"at {running.env.now:g} s"
            raise KsimError(f"process {name} raised {type(error).__name__} {at}: {error}") from error
        value = yield event
        if running.over:
            return

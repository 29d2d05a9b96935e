"""The estimate of an engine under a steady load: its latencies, its throughput and its joules, without a simulation.

An engine decodes as many sequences at a time as Little's law says, and its steps take the longer the more prompt tokens
come meanwhile: a fixed point of both.  A request waits for the step that runs, for the step that is scheduled already,
and for the prompts before it.  All steps have ksim's own prices.  `benchmarks/planning.py` shows the errors beside
simulations.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from math import inf

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from ksim.foundation.errors import DoesNotFit
from ksim.foundation.rng import stream
from ksim.results.steps import Floats, Ints
from ksim.scenario.defaults import Deployment
from ksim.scenario.sizing import limits
from ksim.specs.host import Host
from ksim.study.capacity.targets import Target
from ksim.study.planning.step_prices import LoadSample, StepPrices

#: Requests whose latencies are drawn; rounds of the fixed point at most, and when it is found.
_DRAWN, _ROUNDS, _CLOSE = 512, 60, 1e-4
#: Numbers of prompt tokens of a step that are told apart.
_BINS = 64
#: The most sequences whose number is told exactly.
_CROWD = 1500.0
#: An engine that is busy for a larger share of its time, or so close to its largest batch, is full.
FULL = 0.97


@frozen(eq=False)
class Station:
    """Engines of one kind that a request passes, in several variants: a row for each.

    An engine has so many `lanes` of sequences: ranks of attention, or batches among pipeline stages.  In a step of a
    variant, a lane computes at most its `budget` of tokens, and holds at most so many sequences (`most`).  Where the
    engine `mixes`, prompts and decodes share a step.  It `decodes`, or computes `prompts`, or both.
    """

    prices: StepPrices = field(repr=False)
    load: LoadSample = field(repr=False)
    host: Host = field(repr=False)
    lanes: int
    workers: int
    depth: int
    ahead: bool
    mixes: bool
    decodes: bool
    prompts: bool
    block: int
    idle: float
    budget: Floats
    most: Floats

    def rows(self, which: Ints) -> "Station":
        """The variants of these numbers, of which some may come several times."""
        return evolve(self, prices=self.prices.rows(which), budget=self.budget[which], most=self.most[which])

    def of_role(self, role: str) -> "Station":
        """The same engines in a pool of this *role*: both, prefill or decode."""
        decodes = role != "prefill"
        return evolve(self, load=self.load if decodes else self.load.prefilled, ahead=self.ahead and decodes,
                      decodes=decodes, prompts=role != "decode")

    @property
    def alike(self) -> Hashable:
        """What stations have in common whose variants may be rows of one (`joined`)."""
        return (id(self.load), self.host, self.lanes, self.workers > 1, self.depth, self.ahead, self.mixes,
                self.decodes, self.prompts, self.block, self.idle, self.prices.largest, self.prices.width,
                *self.prices.columns)

    @classmethod
    def joined(cls, stations: Sequence["Station"]) -> "Station":
        """The variants of all *stations*, which are `alike`, one after the other."""
        prices = StepPrices.joined([one.prices for one in stations], [len(one.budget) for one in stations])
        return evolve(stations[0], prices=prices, budget=np.concatenate([one.budget for one in stations]),
                      most=np.concatenate([one.most for one in stations]))

    def chunk(self, decodes: Floats) -> Floats:
        """Prompt tokens of a step beside so many *decodes* at most."""
        return np.maximum(1.0, self.budget - decodes) if self.mixes else self.budget

    def step(self, decodes: Floats, prompts: Floats) -> Floats:
        """Seconds from one token of a sequence to the next, of so many that decode beside *prompts* in a lane."""
        if self.mixes:
            return self._turn(decodes, prompts)
        return np.where(prompts > 0, self._turn(0 * decodes, prompts), 0.0) + self._turn(decodes, 0 * prompts)

    def prefill(self, decodes: Floats, prompts: Floats) -> Floats:
        """Seconds of a step that computes so many tokens of *prompts*, beside *decodes* where steps are mixed."""
        return self._turn(decodes if self.mixes else 0 * decodes, prompts)

    def _turn(self, decodes: Floats, prompts: Floats) -> Floats:
        """Seconds from one step to the next.

        GPUs compute, the loop makes batches and takes their tokens in, and workers launch; what takes longest counts.
        """
        seconds, launch = self.prices.at(decodes, prompts)
        core, worker = self.host.core, self.host.worker
        making = (core.schedule + (core.send if self.workers > 1 else 0.0) + core.schedule_sequence * decodes
                  + core.schedule_block / self.block * (decodes + prompts))
        taking = core.update + core.update_sequence * decodes
        preparing = worker.prepare + worker.prepare_sequence * decodes
        turn = making + preparing + np.maximum(seconds, launch) + taking
        if self.depth == 1:
            return np.asarray(turn)
        launching = preparing + launch
        loop = making + taking + (launching if self.workers == 1 else 0.0)
        streaming = self.host.client.stream * decodes
        return np.asarray(np.maximum.reduce(np.broadcast_arrays(seconds, loop, launching, turn / self.depth,
                                                                streaming)))

    def steady(self, rates: Floats, engines: Floats | None = None) -> "Steady":
        """The steady state of each variant, to each engine of which come so many requests/s.

        Where requests take turns among so many *engines*, they come to each more regularly than by chance; infinitely
        many stand for a closed loop, whose number of sequences does not spread.
        """
        own, new = rates / self.lanes, self.load.new
        decodes, seconds = np.zeros_like(own), self._turn(np.ones_like(own), np.zeros_like(own))
        for _ in range(_ROUNDS):
            before, prompts = (seconds, decodes), StepPrompts.of(own * seconds * self.prompts, new, self.chunk(decodes))
            if self.decodes:
                seconds = prompts.mean(self.step(decodes[:, None] + 1, prompts.tokens))
                decodes = np.minimum(own * self.load.steps * seconds, 2 * self.most)
            else:
                seconds = prompts.some(self.prefill(decodes[:, None], prompts.tokens))
            if np.allclose(before, (seconds, decodes), rtol=_CLOSE, atol=0.0):
                break
        turns = self.lanes * (np.ones_like(own) if engines is None else engines)
        if self.decodes:
            seconds, decodes = self._crowded(own, turns, decodes, seconds, prompts)
            prompts = StepPrompts.of(own * seconds * self.prompts, new, self.chunk(decodes))
        most = self.chunk(decodes)
        busy = self.prompts * own * new.mean() / most * (seconds if self.decodes else self.prefill(decodes, most))
        return Steady(self, own, decodes, seconds, prompts, (busy >= FULL) | (decodes >= FULL * self.most), turns)

    def _crowded(self, own: Floats, turns: Floats, decodes: Floats, seconds: Floats, prompts: "StepPrompts"
                 ) -> tuple[Floats, Floats]:
        """Seconds of a step and sequences that decode, where their number spreads about its mean.

        The more sequences, the longer a step, and the longer all of them stay.  They share a processor whose speed
        depends on their number k, which then has a product form whatever their lengths: p(k) is in proportion to the
        product of rate * steps * seconds(j) / j over j up to k (Kelly, "Reversibility and stochastic networks", 1979,
        section 3.3).  Where requests take turns, their number spreads less by the peakedness of an infinite server.
        """
        count = np.arange(1.0, min(_CROWD, 3 * float(decodes.max()) + 50))
        alone = self.step(decodes, 0 * decodes)
        share = np.clip(1 - (prompts.mean(self.step(decodes[:, None], prompts.tokens)) - alone)
                        / np.maximum(seconds, 1e-12), 1 - FULL, 1.0)  # of the time that is left for decodes
        held = np.maximum(1.0, np.minimum(count, self.most[:, None]))
        logs = np.log(own[:, None] * self.load.steps * self.step(held, 0 * held) / share[:, None] / held)
        logs = np.concatenate([np.zeros((len(own), 1)), np.cumsum(logs, axis=1)], axis=1)
        chances = np.exp(logs - logs.max(axis=1, keepdims=True))
        mean = (chances[:, 1:] * count).sum(axis=1) / chances.sum(axis=1)
        peaked = np.where(np.isinf(turns), 0.0, 1 - (1 - 1 / turns) * self.load.alike)
        crowded = np.clip(decodes + peaked * (mean - decodes), 0.0, 2 * self.most)
        return np.where(crowded > 0, crowded / np.maximum(own * self.load.steps, 1e-12), seconds), crowded


def station(deployments: Sequence[Deployment], prices: StepPrices, load: LoadSample, role: str = "both") -> Station:
    """The engines of *deployments*, which have the same *prices* and differ by their limits.

    Their *role* is that of a pool: both, prefill or decode.
    """
    first = deployments[0]
    serve, stages = first.serve, first.serve.pipeline_parallel_size
    bounds = [limits(one.serve, one.version) for one in deployments]
    held = [cache_tokens(one) / stages / load.held for one in deployments]
    made = Station(
        prices=prices, load=load, host=first.host, lanes=serve.data_parallel_size * stages, workers=serve.gpus,
        depth=max(1, bounds[0].depth // stages), ahead=bounds[0].async_scheduling,
        mixes=first.version.scheduler != "sglang", decodes=True, prompts=True, block=first.block_tokens,
        idle=first.gpu.power.idle,
        budget=np.array([float(bound.max_num_batched_tokens) for bound in bounds]),
        most=np.array([min(bound.max_num_seqs / stages, most) for bound, most in zip(bounds, held, strict=True)]))
    return made.of_role(role)


def cache_tokens(deployment: Deployment) -> float:
    """The tokens for which a rank has KV cache; 0 where that is too little to start with."""
    try:
        return float(deployment.kv_blocks * deployment.block_tokens)
    except DoesNotFit:
        return 0.0


@frozen(eq=False)
class StepPrompts:
    """How many prompt `tokens` steps have, and how likely each number is: a row for each of several rates."""

    tokens: Floats
    shares: Floats

    @classmethod
    def of(cls, expected: Floats, new: Floats, most: Floats) -> "StepPrompts":
        """Where so many prompts are *expected* in a step, of lengths as in *new*, which computes the *most* tokens.

        The tokens that come meanwhile have the compound Poisson distribution, by the transform of the lengths' own
        (Panjer, 1981).  What does not fit into a step fills others, so that all tokens are computed.
        """
        largest = float(most.max())
        whole = np.floor(new / largest)
        pieces = np.concatenate([np.full(int(whole.sum()), largest), (new - whole * largest)[new > whole * largest]])
        place = pieces * (_BINS / largest)
        below = np.floor(place).astype(int)
        lengths = np.bincount(below, below + 1 - place, 2 * _BINS) + np.bincount(below + 1, place - below, 2 * _BINS)
        transform = np.fft.rfft(lengths / len(pieces))
        counts = expected[:, None] * (len(pieces) / len(new))
        shares = np.maximum(0.0, np.fft.irfft(np.exp(counts * (transform - 1)), 2 * _BINS, axis=1))
        shares[:, _BINS] = shares[:, _BINS:].sum(axis=1)
        shares = shares[:, :_BINS + 1] / shares[:, :_BINS + 1].sum(axis=1, keepdims=True)
        tokens = np.minimum(np.arange(_BINS + 1) * (largest / _BINS), most[:, None])
        fits = (shares * tokens).sum(axis=1)
        filled = np.clip((expected * new.mean() - fits) / np.maximum(most - fits, 1e-9), 0.0, 1.0)
        shares *= 1 - filled[:, None]
        shares[:, _BINS] += filled
        return cls(tokens, shares)

    def mean(self, values: Floats) -> Floats:
        """The mean of *values*, one for each number of tokens."""
        return np.asarray((self.shares * values).sum(axis=1))

    def some(self, values: Floats) -> Floats:
        """The mean of *values* over steps that have prompts."""
        return np.asarray((self.shares * values)[:, 1:].sum(axis=1) / np.maximum(1 - self.shares[:, 0], 1e-12))


@frozen(eq=False)
class Steady:
    """The steady state of a `station`, for each of several `rates` of a lane.

    So many sequences of a lane decode, a step takes `seconds` on the mean, and `prompts` are computed in it.  Where it
    is `full`, more requests come than it serves.  Requests take turns among so many lanes (`turns`).
    """

    station: Station
    rates: Floats
    decodes: Floats
    seconds: Floats
    prompts: StepPrompts
    full: NDArray[np.bool_]
    turns: Floats

    def rows(self, which: Ints) -> "Steady":
        """The states of these numbers, of which some may come several times."""
        prompts = StepPrompts(self.prompts.tokens[which], self.prompts.shares[which])
        return Steady(self.station.rows(which), self.rates[which], self.decodes[which], self.seconds[which], prompts,
                      self.full[which], self.turns[which])

    def value(self, target: Target) -> Floats:
        """The statistic of *target* in seconds at each rate; infinite where a station is full."""
        seconds = (self._gap(target.share) if target.metric == "itl" else
                   _statistic(getattr(self, target.metric), target.share))
        return np.where(self.full, inf, seconds)

    def _gap(self, share: float | None) -> Floats:
        """The mean time between tokens, or that which so large a *share* of them does not exceed."""
        if share is None:
            return self.seconds
        order = np.argsort(self.gaps, axis=1)
        below = np.cumsum(np.take_along_axis(self.prompts.shares, order, axis=1), axis=1)
        first = np.minimum((below < share).sum(axis=1), _BINS)
        return np.take_along_axis(self.gaps, np.take_along_axis(order, first[:, None], axis=1), axis=1)[:, 0]

    @property
    def watts(self) -> Floats:
        """Power of one GPU on the mean: what it draws idle, and the joules of its steps."""
        station = self.station
        if station.decodes:
            met, tokens = self.decodes[:, None] + 1, self.prompts.tokens
            drawn = self.prompts.mean(station.prices.joules(met, tokens)) / self.prompts.mean(station.step(met, tokens))
            working = drawn * np.minimum(1.0, self.decodes + self.rates * self.seconds)
        else:
            most = station.chunk(self.decodes)
            each = station.prices.joules(self.decodes, most) / most
            working = self.rates * station.load.new.mean() * each
        return np.asarray(station.idle + working)

    @cached_property
    def gaps(self) -> Floats:
        """Seconds between two tokens of a sequence, for each number of prompt tokens."""
        return self.station.step(self.decodes[:, None], self.prompts.tokens)

    @cached_property
    def queue(self) -> Floats:
        """Seconds from a request's arrival at an engine to the first step of its prompt: a row for each rate."""
        drawn, station = self.drawn, self.station
        ahead = self.seconds[:, None] * station.ahead
        left = drawn.place * self._running * (1 - self._several * self._prompting)[:, None]
        waiting = np.where(self._busy, left + ahead, station.host.core.wake)
        return waiting + (self._backlog + self._slots)[:, None] * drawn.long

    @cached_property
    def ttft(self) -> Floats:
        """Seconds to the first token."""
        core, client = self.station.host.core, self.station.host.client
        coming = client.accept + client.travel + client.travel_token * self.drawn.prompts
        going = core.update + client.deliver + (core.update_sequence + client.deliver_sequence) * self.decodes
        return coming + self.queue + self._computing + going[:, None]

    @cached_property
    def tpot(self) -> Floats:
        """Seconds for each token after the first: the longer a request, the closer to the mean.

        The number of sequences that decode spreads as that of an M/G/infinity queue does, like Poisson's; a request
        meets its mean over its own life, which spreads by two thirds of that.
        """
        drawn, step = self.drawn, self.station.step
        mean = self.prompts.mean(self.gaps)
        spread = np.sqrt(np.maximum(0.0, self.prompts.mean(self.gaps**2) - mean**2))
        more = np.maximum(1.0, 0.1 * self.decodes)
        slope = (self.prompts.mean(step((self.decodes + more)[:, None], self.prompts.tokens)) - mean) / more
        others = slope * np.sqrt(2 / 3 * self.decodes)
        values = self.seconds[:, None] + spread[:, None] * drawn.mixed + others[:, None] * drawn.crowd
        least = step(np.minimum(self.decodes, 1.0), np.zeros_like(self.decodes))
        return np.asarray(np.maximum(values, least[:, None]) / drawn.accepted)

    @cached_property
    def e2el(self) -> Floats:
        """Seconds to the last token."""
        return self.ttft + self.drawn.later * self.tpot

    @cached_property
    def drawn(self) -> "_Drawn":
        """What chance decides, the same for all stations of a load."""
        return _Drawn.of(self.station.load)

    @cached_property
    def _uneven(self) -> Floats:
        """How long requests wait for each other beside Poisson arrivals: Kingman's ratio of squared variations.

        Every n-th of Poisson arrivals has a squared coefficient of variation of 1 / n.
        """
        new = self.station.load.new
        lengths = (new.std() / new.mean())**2
        return np.asarray((1 / self.turns + lengths) / (1 + lengths))

    @cached_property
    def _several(self) -> Floats:
        """How far prompts are served one after the other (1), and not several in a step (0)."""
        return np.asarray(np.minimum(1.0, self.station.load.new.mean() / self.station.chunk(self.decodes)))

    @cached_property
    def _prompting(self) -> Floats:
        """The share of the time in steps with prompts."""
        times = self.prompts.shares * self.station.prefill(self.decodes[:, None], self.prompts.tokens)
        return np.asarray(times[:, 1:].sum(axis=1) / times.sum(axis=1))

    @cached_property
    def _busy(self) -> NDArray[np.bool_]:
        """Whether a drawn request meets an engine with work."""
        if self.station.decodes:
            share = 1 - np.exp(-self.decodes - self.rates * self.seconds)
        else:
            alone = self._computed(self.station.load.new, 0.0).mean(axis=1)
            share = np.minimum(1.0, self.rates * alone) * self._uneven
        return self.drawn.busy < share[:, None]

    @cached_property
    def _running(self) -> Floats:
        """Seconds of the step that runs when a drawn request comes: long ones are met more often."""
        tokens = self.prompts.tokens
        turns = self.station.prefill(self.decodes[:, None], tokens)
        turns = turns if self.station.decodes else np.where(tokens > 0, turns, 0.0)
        return _of_shares(self.prompts.shares * turns, turns, self.drawn.step)

    @cached_property
    def _computing(self) -> Floats:
        """Seconds in steps of a drawn request's prompt, beside those that came in the same step."""
        window = np.maximum(self._running * self._uneven[:, None], 1e-9) / self.seconds[:, None]
        longer = np.where(self._busy, window, 1e-9)
        others = np.maximum(0.0, 1 - (1 - self.drawn.others) / longer)  # the longer a step, the likelier is another
        tokens = _of_shares(self.prompts.shares, self.prompts.tokens, others) * (1 - self._several)[:, None]
        return self._computed(self.drawn.new + self.drawn.order * tokens, (1 - self.drawn.order) * tokens)

    def _computed(self, tokens: Floats, behind: Floats | float) -> Floats:
        """Seconds of steps until *tokens* of prompts are computed, with those *behind* them in the last step."""
        decodes, most = self.decodes[:, None], self.station.chunk(self.decodes)[:, None]
        whole = np.maximum(0.0, np.ceil(tokens / most) - 1)
        last = np.minimum(most, tokens - whole * most + behind)
        prefill = self.station.prefill
        return np.asarray(whole * prefill(decodes, most + 0 * tokens) + prefill(decodes, last))

    @cached_property
    def _backlog(self) -> Floats:
        """Seconds that prompts wait for those before them, where few fit in a step (Pollaczek, Khinchine, Kingman)."""
        new, most = self.station.load.new, self.station.chunk(self.decodes)
        each = new.mean() / most * self.station.prefill(self.decodes, most)
        load = np.minimum(self.rates * each, FULL)
        longer = (new**2).mean() / (2 * new.mean()**2)
        return np.asarray(self._several * load / (1 - load) * each * longer * self._uneven)

    @cached_property
    def _slots(self) -> Floats:
        """Seconds that requests wait for a place in the batch: M/M/c by Sakasegawa (1977)."""
        places = np.maximum(1.0, self.station.most)
        load = np.minimum(self.decodes / places, FULL)
        return np.asarray(self.station.load.steps * self.seconds * load**((2 * (places + 1))**0.5 - 1)
                          / (places * (1 - load)))


def _of_shares(shares: Floats, values: Floats, at: Floats) -> Floats:
    """In each row, those of *values* up to which the *shares* add to the parts *at* of their sum."""
    below = np.cumsum(shares, axis=1)
    below /= np.maximum(below[:, -1:], 1e-30)
    place = np.array([*map(np.searchsorted, below, np.broadcast_to(at, (len(below), at.shape[-1])))])
    return np.take_along_axis(np.broadcast_to(values, shares.shape), np.minimum(place, shares.shape[1] - 1), axis=1)


def _statistic(values: Floats, share: float | None) -> Floats:
    return np.asarray(values.mean(axis=1) if share is None else np.quantile(values, share, axis=1))


@frozen(eq=False)
class _Drawn:
    """What chance decides of some requests of a load, the same for all engines; shares are uniform from 0 to 1.

    A request has so many tokens after its first one (`later`), and a step gives it so many (`accepted`).
    """

    prompts: Floats
    new: Floats
    later: Floats
    accepted: Floats
    step: Floats
    place: Floats
    busy: Floats
    others: Floats
    order: Floats
    long: Floats
    mixed: Floats
    crowd: Floats

    @classmethod
    def of(cls, load: LoadSample) -> "_Drawn":
        rng = stream(0, "estimate")
        rows = rng.integers(len(load.prompts), size=_DRAWN)
        step, place, busy, others, order = rng.random((5, _DRAWN))
        later = np.maximum(1.0, load.outputs[rows] - 1)
        steps = np.maximum(1.0, later / load.accepted)
        long, mixed, crowd, luck = rng.exponential(size=_DRAWN), *rng.normal(size=(3, _DRAWN))
        accepted = load.accepted * np.maximum(0.1, 1 + load.uneven / np.sqrt(steps) * luck)
        return cls(prompts=load.prompts[rows], new=load.new[rows], later=later, accepted=accepted, step=step,
                   place=place, busy=busy, others=others, order=order, long=long, mixed=mixed / np.sqrt(steps),
                   crowd=crowd)


@frozen(eq=False)
class SteadyApart:
    """Requests that are prefilled by the engines of one station and decoded by those of another: a row for each rate.

    KV takes `start` seconds and `token` seconds for each token of a prompt from one to the other (rows x 1).
    """

    prefill: Steady
    decode: Steady
    start: Floats
    token: Floats

    def rows(self, which: Ints) -> "SteadyApart":
        """As of `Steady`, where both have a row for each."""
        return SteadyApart(self.prefill.rows(which), self.decode.rows(which), self.start[which], self.token[which])

    @property
    def full(self) -> NDArray[np.bool_]:
        return self.prefill.full | self.decode.full

    def value(self, target: Target) -> Floats:
        """As of `Steady`."""
        if target.metric in ("tpot", "itl"):
            return self.decode.value(target)
        return np.where(self.full, inf, _statistic(getattr(self, target.metric), target.share))

    @property
    def queue(self) -> Floats:
        return self.prefill.queue

    @property
    def ttft(self) -> Floats:
        """Seconds to the first token, which the engine that decodes makes.

        A request gets its room when the step ends that runs.  That its KV has come is reported with a batch that begins
        later, and its last token is computed again behind the batches that are scheduled by then.
        """
        decode, client = self.decode, self.decode.station.host.client
        moved = client.accept + client.travel + self.start + self.token * self.prefill.drawn.prompts
        turns = decode.drawn.place + 2 * decode.station.depth - 1
        again = decode.station.step(decode.decodes + 1, np.zeros_like(decode.decodes))
        return self.prefill.ttft + moved + decode.seconds[:, None] * turns + again[:, None]

    @property
    def e2el(self) -> Floats:
        return self.ttft + self.prefill.drawn.later * self.decode.tpot

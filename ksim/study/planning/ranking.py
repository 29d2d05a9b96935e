"""The ranking of candidates by estimates: how many replicas each needs for a rate, and what that costs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Protocol

import numpy as np
from attrs import field, frozen

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.units import HOUR
from ksim.results.numbers import CostRates
from ksim.results.steps import Bools, Floats, Ints
from ksim.scenario.defaults import Deployment
from ksim.scenario.sizing import pack
from ksim.specs.shard import Shard
from ksim.study.capacity.targets import Target
from ksim.study.grid import Settings, short_names, value_text
from ksim.study.planning.candidates import OWN, Candidates, EngineFamily, GpuKind, apart
from ksim.study.planning.estimate import Station, Steady, SteadyApart, station
from ksim.study.planning.step_prices import LoadSample, StepPrices

#: The most replicas, and from which ratio on numbers of them are halved by their logarithms.
_MOST, _NEAR = 512, 3
#: Numbers of engines that prefill alone.
_PREFILLS = (*range(1, 33), *range(36, 65, 4), *range(80, 129, 16), *range(160, 257, 32), 320, 384, 448, _MOST)
#: Targets that the engine decides which decodes, where another one prefills.
_DECODED = ("tpot", "itl")


@frozen(eq=False)
class Priced:
    """A family with the prices of its steps for a `load`."""

    family: EngineFamily
    prices: StepPrices = field(repr=False)
    load: LoadSample = field(repr=False)

    @classmethod
    def of(cls, family: EngineFamily, load: LoadSample) -> "Priced":
        """Price the steps of *family*; raises KsimError."""
        return cls(family, StepPrices.of(family.variants[0], load), load)

    def station(self, role: str = "both") -> Station:
        """Its variants as engines of this *role*; those that prefill or decode alone are of the first variant."""
        variants = self.family.variants if role == "both" else self.family.variants[:1]
        return station(variants, self.prices, self.load, role)

    @property
    def most(self) -> int:
        """How many replicas there can be."""
        most = self.family.kind.most
        return _MOST if most is None else min(_MOST, most // self.family.gpus)


class EstimatedState(Protocol):
    """What an estimate says of several variants or numbers of replicas: `Steady` or `SteadyApart`."""

    @property
    def full(self) -> Bools: ...

    def value(self, target: Target) -> Floats: ...


def kept(state: EstimatedState, targets: Sequence[Target]) -> Bools:
    """Which rows of *state* keep all *targets*."""
    keeps = ~state.full
    for target in targets:
        keeps = keeps & (state.value(target) <= target.limit)
    return keeps


#: Whether variants, by number, carry the load with so many replicas each.
Carries = Callable[[Ints, Ints], Bools]


def fewest(engines: Station, rate: float, targets: Sequence[Target], most: int) -> Ints:
    """The fewest replicas of each variant of *engines* that keep *targets* at *rate*; 0 where the *most* do not."""
    def carries(which: Ints, replicas: Ints) -> Bools:
        return kept(engines.rows(which).steady(rate / replicas, replicas.astype(np.float64)), targets)

    return fewest_of(carries, np.arange(len(engines.budget)), most)


def fewest_of(carries: Carries, variants: Ints, most: int) -> Ints:
    """The fewest replicas of each of *variants* that it *carries*, all at a time; 0 where the *most* do not."""
    high = np.full(len(variants), most)
    low = np.zeros_like(high)
    high[~carries(variants, high)] = 0
    while (open_ := np.flatnonzero(high - low > 1)).size:
        middle = np.where(high[open_] > _NEAR * np.maximum(low[open_], 1),
                          np.sqrt(np.maximum(low[open_], 1) * high[open_]).astype(int), (low[open_] + high[open_]) // 2)
        enough = carries(open_, middle)
        high[open_] = np.where(enough, middle, high[open_])
        low[open_] = np.where(enough, low[open_], middle)
    return high


@frozen(eq=False)
class Option:
    """A candidate with as many replicas as its estimate says that the rate needs.

    `settings` make its scenario of the one that was asked for, and so many `replicas` of that carry the rate.  `values`
    are the estimated statistics of targets, in seconds; `watts` are those of all GPUs.  A request takes so many
    `seconds` on the mean.  `families` are those of its engines.
    """

    name: str
    gpu: str
    settings: Settings = field(repr=False)
    replicas: int
    gpus_each: int
    values: Mapping[Target, float]
    watts: float
    costs: Mapping[str, float]
    families: tuple[EngineFamily, ...] = field(repr=False)
    seconds: float

    @property
    def rates(self) -> CostRates:
        """What a joule and a GPU-second cost."""
        return self.families[-1].rates

    @property
    def gpus(self) -> int:
        return self.replicas * self.gpus_each

    @property
    def strain(self) -> float:
        """The worst target over its limit."""
        return max(value / target.limit for target, value in self.values.items())

    def order(self, objectives: Sequence[str]) -> tuple[float, ...]:
        """A key to sort by: the *objectives*, then engines that are not apart, then joules."""
        return (*(round(self.costs[name], 6) for name in objectives), float("pools" in self.settings),
                self.costs["joules"], self.strain)


@frozen
class PlanQuestion:
    """What is asked: the `load`, its `rate` in requests/s, and the `targets` to keep."""

    load: LoadSample
    rate: float
    targets: tuple[Target, ...]

    @property
    def tokens(self) -> float:
        """Output tokens/s."""
        return self.rate * float(self.load.outputs.mean())


def options(question: PlanQuestion, found: Candidates) -> Iterator[Option]:
    """The options of all candidates that can keep the targets; raises KsimError for steps that cannot be priced."""
    priced = [Priced.of(family, question.load) for family in found.families]
    for one in priced:
        yield from _whole(question, one)
    yield from _apart(question, priced)


def _whole(question: PlanQuestion, priced: Priced) -> Iterator[Option]:
    """The variants of a family whose engines serve requests alone."""
    engines, family = priced.station(), priced.family
    counts = fewest(engines, question.rate, question.targets, priced.most) if priced.most else np.zeros(0, int)
    which = np.flatnonzero(counts)
    if not which.size:
        return
    state = engines.rows(which).steady(question.rate / counts[which], counts[which].astype(np.float64))
    values, watts = {target: state.value(target) for target in question.targets}, state.watts
    seconds = state.e2el.mean(axis=1)
    for row, variant in enumerate(which):
        gpus = family.gpus * int(counts[variant])
        settings = {**family.shared, **family.own[variant]}
        power = gpus * float(watts[row])
        yield Option(
            name_of(settings), family.kind.name, settings, replicas=int(counts[variant]), gpus_each=family.gpus,
            values={target: float(value[row]) for target, value in values.items()}, watts=power,
            costs=costs_of(question, family.rates, gpus, power), families=(family,), seconds=float(seconds[row]))


def of_one(question: PlanQuestion, deployment: Deployment) -> Option | None:
    """What the estimate says of as many replicas of one *deployment* as the rate needs; None where no number does."""
    return next(_whole(question, _priced_alone(question.load, deployment)), None)


def highest_rate(load: LoadSample, targets: Sequence[Target], deployment: Deployment) -> float:
    """The highest rate, in requests/s, of one replica of *deployment* that keeps *targets*, by the estimate; or 0.0."""
    engines = _priced_alone(load, deployment).station()
    rates = np.geomspace(*_RATES, _TRIED)
    for _ in range(2):
        state = engines.rows(np.zeros(len(rates), int)).steady(rates)
        carried = int(np.argmin(np.append(kept(state, targets), False)))
        if not carried or carried == len(rates):
            return float(rates[-1]) if carried else 0.0
        found = float(rates[carried - 1])
        rates = np.geomspace(found, rates[carried], _TRIED)
    return found


#: The rates that are tried for the highest one: their ends, and how many at a time.
_RATES, _TRIED = (1e-3, 1e4), 96


def _priced_alone(load: LoadSample, deployment: Deployment) -> Priced:
    family = EngineFamily(GpuKind(deployment.gpu.name), {"gpu": deployment.gpu.name}, ({},), (deployment,))
    return Priced.of(family, load)


#: What may be minimised, and how it is called.
OBJECTIVES = {"gpus": "GPUs", "usd": "$/h", "joules": "J/output token", "carbon": "g CO2e/h"}


def costs_of(question: PlanQuestion, rates: CostRates, gpus: int, watts: float) -> dict[str, float]:
    """What *gpus* that draw so many *watts* cost, by objective; dollars and carbon where their *rates* are stated."""
    costs = {"gpus": float(gpus), "joules": watts / question.tokens}
    facility = (watts + rates.beside * gpus) * rates.pue
    if rates.gpu_dollars is not None:
        costs["usd"] = HOUR * (gpus * rates.gpu_dollars + facility * (rates.dollars or 0.0))
    if rates.grams is not None:
        costs["carbon"] = HOUR * facility * rates.grams
    return costs


@frozen(eq=False)
class _Prefilling:
    """Engines of a family that prefill alone: their state with each of so many replicas (`counts`)."""

    family: EngineFamily
    counts: Ints
    state: Steady

    @classmethod
    def of(cls, question: PlanQuestion, priced: Priced) -> "_Prefilling":
        counts = np.array([count for count in _PREFILLS if count <= priced.most])
        engines = priced.station("prefill").rows(np.zeros(len(counts), int))
        return cls(priced.family, counts, engines.steady(question.rate / counts, counts.astype(np.float64)))


@frozen(eq=False)
class _Decoding:
    """Engines of a family that decode alone, as many as the targets of tokens need."""

    family: EngineFamily
    count: int
    state: Steady

    @classmethod
    def of(cls, question: PlanQuestion, priced: Priced) -> "_Decoding | None":
        """None where no number of them keeps the targets."""
        engines = priced.station("decode")
        after = [target for target in question.targets if target.metric in _DECODED]
        count = int(fewest(engines, question.rate, after, priced.most)[0]) if priced.most else 0
        return cls(priced.family, count, engines.steady(np.array([question.rate / count]))) if count else None


def _apart(question: PlanQuestion, priced: Sequence[Priced]) -> Iterator[Option]:
    """Engines of two families that prefill and decode apart, for each two that may do so together."""
    single = [one for one in priced if one.family.single]
    decoding = [found for one in single if (found := _Decoding.of(question, one)) is not None]
    for prefill in [_Prefilling.of(question, one) for one in single if one.most]:
        for decode in decoding:
            if apart(prefill.family, decode.family):
                yield from _split(question, prefill, decode)


def _split(question: PlanQuestion, prefill: _Prefilling, decode: _Decoding) -> Iterator[Option]:
    """The fewest engines of *prefill* that keep the other targets beside those of *decode*, if any number does."""
    state = SteadyApart(prefill.state, decode.state, *_transfer(prefill.family, decode.family))
    most = decode.family.kind.most
    room = inf if most is None else most - decode.count * decode.family.gpus
    fits = np.flatnonzero(kept(state, question.targets) & (prefill.counts * prefill.family.gpus <= room))
    if fits.size:
        yield _option_of(question, prefill, decode, state, int(fits[0]))


def _transfer(prefill: EngineFamily, decode: EngineFamily) -> tuple[float, float]:
    """Seconds until KV moves from one engine to the other, and for each token of it, over the NICs of both."""
    one = prefill.variants[0]
    serve, link = one.serve, one.system.network or one.system.inside
    connector = plugin("kv.transfer.connectors", Choice("sglang" if one.version.scheduler == "sglang" else "nixl"))
    held = one.model.cache_per_token(Shard(tensor=serve.tensor_parallel_size, precision=serve.precision))
    ends = min(serve.tensor_parallel_size, decode.variants[0].serve.tensor_parallel_size)
    return connector.start, (serve.tensor_parallel_size * held
                             / (ends * link.bandwidth * link.efficiency * connector.share))


def _option_of(question: PlanQuestion, prefill: _Prefilling, decode: _Decoding, state: SteadyApart, row: int
               ) -> Option:
    both: tuple[tuple[_Prefilling | _Decoding, int], ...] = (
        (prefill, int(prefill.counts[row])), (decode, decode.count))
    pools = {name: {"role": name, "replicas": count,
                    "serve": {key.removeprefix("serve."): one.family.shared[key] for key in OWN}}
             for name, (one, count) in zip(("prefill", "decode"), both, strict=True)}
    gpus = sum(count * one.family.gpus for one, count in both)
    watts = sum(count * one.family.gpus * float(one.state.watts[place])
                for (one, count), place in zip(both, (row, 0), strict=True))
    shared = {key: value for key, value in decode.family.shared.items() if key not in OWN}
    node = decode.family.variants[0].system.gpus_per_node
    nodes = -(-pack([one.family.gpus for one, count in both for _ in range(count)], node)[1] // node)
    settings = {**shared, "nodes": nodes, "pools": pools}
    return Option(
        name_of(settings), decode.family.kind.name, settings, replicas=1, gpus_each=gpus, watts=watts,
        values={target: float(np.broadcast_to(state.value(target), state.full.shape)[row])
                for target in question.targets},
        costs=costs_of(question, decode.family.rates, gpus, watts), families=(prefill.family, decode.family),
        seconds=float(state.e2el.mean(axis=1)[row]))


#: How a name says a setting.
_SAID = {"serve.tensor_parallel_size": "TP{}", "serve.pipeline_parallel_size": "PP{}",
         "serve.data_parallel_size": "DP{}", "serve.quantization": "{}", "serve.kv_cache_dtype": "{} KV",
         "serve.max_num_batched_tokens": "{:,} tokens a step", "serve.max_num_seqs": "{:,} sequences",
         "serve.enable_expert_parallel": "EP", "engine": "{}"}


def name_of(settings: Settings) -> str:
    """Such as "TP4, fp8, 8,192 tokens a step on h100"; of engines apart, how many of each."""
    pools, parts = settings.get("pools"), list[str]()
    if pools:
        parts.append(" + ".join(f"{pool['replicas']} {name} TP{pool['serve'].get('tensor_parallel_size', 1)}"
                                for name, pool in pools.items()))
    others = [key for key in settings if key not in (*_SAID, "pools", "gpu", "nodes")]
    shorter = short_names(others)
    for key, value in settings.items():
        if key in _SAID and value not in ("auto", 1):
            parts.append(_SAID[key].format(value))
        elif key in others:
            parts.append(f"{shorter[key]} {value_text(value)}")
    return f"{', '.join(parts) or 'one GPU each'} on {settings['gpu']}"

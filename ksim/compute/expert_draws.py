"""Rows of each expert drawn layer by layer and step by step, and EPLB, which places experts by the rows that it saw.

Each token goes to `top_k` different experts, each expert with its chance of `chances_of`.  In a step, the chances of a
layer's experts lie in a random order one behind the other, on a line of length `top_k`.  A token takes one expert of
each stretch of length 1, by how much of the stretch is the expert's.  An expert over a border, with a part a before and
b behind it, is taken behind it with the chance b / (1 - a) by tokens that have not taken it before, so that all in all
it is taken with the chance a + b: ordered pivotal sampling (Chauvet, Bernoulli 18, 2012).  So an expert's rows are
exactly binomial, rows add up to tokens x top_k, and no token takes an expert twice.  All tokens of a step share the
order, hence a layer costs about as many binomial draws as it has experts, however many tokens there are.

EPLB as in vLLM (distributed/eplb/eplb_state.py): at the start experts lie in their order, with copies of the first ones
behind them; it sums up the loads of the last `window` steps, and rearranges all layers a quarter of the `interval`
after the start, and then each `interval`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ksim.compute.expert_rows import Held, Mixture, Numbers, chances_of, fullness, placed
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.rng import stream
from ksim.specs.shard import Placement, Shard

if TYPE_CHECKING:
    from ksim.compute.model import Model

__all__ = ["Drawn", "ExpertDraws", "Moves", "first_placement", "mixture_layers", "moved"]

Ints = NDArray[np.int64]


@frozen(eq=False, slots=False)
class Drawn:
    """One step's rows: those of `experts` (layers, experts), and of each of the `slots` (layers, ranks, slots a rank).

    `tokens` entered each layer, each as top_k rows.  The rows of an expert are shared out evenly among its copies.  A
    slot that holds no expert has no rows.
    """

    tokens: int
    experts: Ints
    slots: Ints

    @cached_property
    def rows(self) -> Ints:
        """The (token, expert) pairs on each rank: (layers, ranks)."""
        total: Ints = self.slots.sum(axis=2)
        return total

    @cached_property
    def active(self) -> Ints:
        """The experts of each rank that have rows: (layers, ranks)."""
        active: Ints = np.count_nonzero(self.slots, axis=2)
        return active


@frozen
class Moves:
    """What a rearrangement of experts sends, and what it gives.

    `bytes` has, by (source, target), what each GPU of one rank fetches from its peer of another, over all layers.
    `experts` are the copies that move.  `before` and `after` are the rows of the fullest rank in the window over the
    mean of all ranks, averaged over layers, where experts lay and where they lie now.
    """

    bytes: Mapping[tuple[int, int], float]
    experts: int
    before: float
    after: float


def mixture_layers(model: "Model", shard: Shard) -> list[int]:
    """The numbers of the layers of a pipeline stage that route tokens to experts."""
    return [number for number in shard.share(model.layers) if _routed(model, number)]


def _routed(model: "Model", layer: int) -> list[Any]:
    return [operation for operation in model.decoder.layers[layer] if getattr(operation, "routed", "")]


def _expert_bytes(model: "Model", shard: Shard, layer: int) -> float:
    """Bytes of one expert's weights in a layer on one GPU."""
    sizes = Sizes(model.decoder.sizes)
    whole = sum(operation.weights(sizes, shard) for operation in _routed(model, layer))
    return float(whole) / shard.placement.slots(sizes.of["E"], shard.expert_groups)


@define(eq=False)
class ExpertDraws:
    """Draws the rows of the experts of `layers`, which are numbers of the model's layers, step by step.

    Equal arguments draw equal steps: those of step n depend on the `seed`, the number of the (first) `engine`, the
    layers, n and its tokens, and with a `deviation` on the number of steps before it.  Which expert is how popular
    depends on the seed and the number of the layer, however layers are divided into stages.

    Without a `window` (steps), experts are placed once, by what popularity says.  With one, they lie as vLLM places
    them at the start, and `rebalance` places them by the rows of the last so many steps; it is `due` by the `interval`
    (steps).  `expert_bytes` are those of one expert's weights on a GPU, by layer.

    Raises ConfigError for slots that do not divide among the ranks, and for more slots on a rank than experts.
    """

    mixture: Mixture
    layers: Sequence[int]
    seed: int
    window: int = 0
    interval: int = 0
    expert_bytes: Sequence[float] = ()
    engine: int = 0
    steps: int = field(default=0, init=False)
    _held: Ints = field(init=False, repr=False)
    _copies: Ints = field(init=False, repr=False)
    _order: Ints = field(init=False, repr=False)
    _popularity: "_Popularity" = field(init=False, repr=False)
    _loads: "_Window | None" = field(default=None, init=False, repr=False)
    _last: int = field(default=0, init=False, repr=False)

    @classmethod
    def of(cls, model: "Model", shard: Shard, seed: int, window: int = 0, interval: int = 0, engine: int = 0
           ) -> "ExpertDraws":
        """The draws of the stage of *model* that *shard* is of; raises ConfigError where it has no experts."""
        layers = mixture_layers(model, shard)
        if not layers:
            raise ConfigError("routing", "no layer here has experts to draw; leave it out")
        decoder = model.decoder
        mixture = Mixture(decoder.top_k, decoder.sizes["E"], shard.routing, shard.expert_groups, shard.placement)
        return cls(mixture, layers, seed, window, interval, [_expert_bytes(model, shard, each) for each in layers],
                   engine)

    def __attrs_post_init__(self) -> None:
        mixture = self.mixture
        _check_slots(mixture)
        self._popularity = _Popularity(mixture, self.layers, self.seed)
        rearranges = self.window > 0 and mixture.placement.strategy == "balanced"
        first = first_placement(mixture.experts, mixture.ranks, mixture.placement) if rearranges else None
        self._place([first or placed(chances, mixture.ranks, mixture.placement)
                     for chances in self._popularity.mean])
        if rearranges:
            self._loads = _Window(self.window, (len(self.layers), mixture.experts))

    def draw(self, tokens: int) -> Drawn:
        """The rows of the next step, in which *tokens* enter each layer: those of all data ranks together."""
        random = stream(self.seed, "expert rows", self.engine, self.layers[0], self.steps)
        experts = _counts(self._popularity.next(random), tokens, random)
        if self._loads is not None:
            self._loads.add(experts)
        self.steps += 1
        return Drawn(tokens, experts, self._slots(experts))

    def _slots(self, experts: Ints) -> Ints:
        """The rows of each slot; the first copy to get one more than others is another one in each step."""
        none = np.zeros((len(experts), 1), dtype=np.int64)
        rows: Ints = _at(np.concatenate([experts, none], axis=1), self._held)
        if self._copies.max(initial=1) == 1:
            return rows
        each, over = np.divmod(rows, self._copies)
        slots: Ints = each + ((self._order + self.steps) % self._copies < over)
        return slots

    def held(self, layer: int) -> Held:
        """The experts in the slots of each rank, in the layer at that place of `layers`."""
        experts = self.mixture.experts
        return [slots[slots < experts] for slots in self._held[layer]]

    def _place(self, held: Sequence[Held]) -> None:
        """Put experts into the slots of each layer and rank; empty slots hold the number after the last expert's."""
        experts = self.mixture.experts
        room = max(len(slots) for layer in held for slots in layer)
        self._held = np.full((len(held), self.mixture.ranks, room), experts, dtype=np.int64)
        for number, layer in enumerate(held):
            for rank, slots in enumerate(layer):
                self._held[number, rank, : len(slots)] = slots
        flat = self._held.reshape(len(held), -1)
        counts = np.stack([np.bincount(layer, minlength=experts + 1)[:experts + 1] for layer in flat])
        counts[:, experts] = 1
        self._copies = _at(counts, self._held)
        self._order = np.stack([_numbered(layer) for layer in flat]).reshape(self._held.shape)

    @property
    def due(self) -> bool:
        """Whether vLLM would rearrange experts after the last step."""
        if self._loads is None or not self.interval:
            return False
        first = max(1, self.interval // 4)
        return self.steps - self._last >= (self.interval if self._last else first)

    def rebalance(self) -> Moves:
        """Place the experts of each layer by the rows of the window, and return what that moves.

        A layer stays as it is where EPLB's placement is no more even than the one that it has.
        """
        self._last = self.steps
        mixture, loads = self.mixture, None if self._loads is None else self._loads.total
        if loads is None or not loads.any():
            return Moves({}, 0, 1.0, 1.0)
        sent: dict[tuple[int, int], float] = {}
        placements, before, after, experts = list[Held](), 0.0, 0.0, 0
        for number, load in enumerate(loads.astype(np.float64)):
            old = self.held(number)
            new = placed(load, mixture.ranks, mixture.placement)
            most, least = float(fullness(load, old).max()), float(fullness(load, new).max())
            new = new if least < most else old
            size = self.expert_bytes[number] if self.expert_bytes else 0.0
            for pair, count in moved(old, new).items():
                sent[pair] = sent.get(pair, 0.0) + count * size
                experts += count
            placements.append(new)
            before, after = before + most, after + min(most, least)
        self._place(placements)
        mean = float(loads.sum()) / mixture.ranks
        return Moves(sent, experts, before / mean, after / mean)


def _check_slots(mixture: Mixture) -> None:
    slots = mixture.placement.slots(mixture.experts, mixture.ranks)
    if slots > mixture.experts:
        raise ConfigError("serve.num_redundant_experts", f"{mixture.placement.redundant} copies fill {slots} slots on"
                          f" each of {mixture.ranks} ranks, and there are {mixture.experts} experts; set it to"
                          f" {mixture.experts * (mixture.ranks - 1)} or less")


def first_placement(experts: int, ranks: int, placement: Placement) -> Held:
    """Where experts lie before EPLB has seen any load: in their order, and copies of the first ones behind them.

    As in vLLM's `build_initial_global_physical_to_logical_map`.  Raises ConfigError for slots that do not divide.
    """
    placement.slots(experts, ranks)
    slots = np.concatenate([np.arange(experts), np.arange(placement.redundant) % experts])
    return np.array_split(slots, ranks)


def moved(old: Held, new: Held) -> dict[tuple[int, int], int]:
    """The experts that each rank must fetch from each other one, as counts by (source, target).

    What a rank holds already it need not fetch.  Those that hold an expert send it to equally many, as in vLLM
    (distributed/eplb/rebalance_execute.py).
    """
    sources, targets = dict[int, list[int]](), dict[int, list[int]]()
    for rank, (before, after) in enumerate(zip(old, new, strict=True)):
        had = {*before.tolist()}
        for expert in had:
            sources.setdefault(expert, []).append(rank)
        for expert in {*after.tolist()} - had:
            targets.setdefault(expert, []).append(rank)
    counts = dict[tuple[int, int], int]()
    for expert, ranks in targets.items():
        for number, target in enumerate(ranks):
            pair = sources[expert][number * len(sources[expert]) // len(ranks)], target
            counts[pair] = counts.get(pair, 0) + 1
    return counts


@define(eq=False)
class _Window:
    """The sum of the last so many steps' loads, each of one shape."""

    size: int
    shape: tuple[int, int]
    total: Ints = field(init=False)
    _steps: list[NDArray[np.int32]] = field(factory=list, init=False)
    _next: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.total = np.zeros(self.shape, dtype=np.int64)

    def add(self, load: Ints) -> None:
        self.total += load
        if len(self._steps) < self.size:
            self._steps.append(load.astype(np.int32))
            return
        self.total -= self._steps[self._next]
        self._steps[self._next] = load.astype(np.int32)
        self._next = (self._next + 1) % self.size


@define(eq=False)
class _Popularity:
    """The chances of each layer's experts, (layers, experts), which may move from step to step.

    Which expert is the most popular one, and so on, follows numbers that are normal and independent but for the
    routing's `layer_correlation`; shares that were measured have an order of their own.
    """

    mixture: Mixture
    layers: Sequence[int]
    seed: int
    mean: Numbers = field(init=False)
    _shares: Numbers = field(init=False)
    _logarithms: Numbers | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        mixture, routing = self.mixture, self.mixture.routing
        rows = [routing.at(layer) for layer in self.layers]
        chances = {row: chances_of(mixture.top_k, mixture.experts, row.exponent, row.shares[0] if row.shares else ())
                   for row in dict.fromkeys(rows)}
        self.mean = np.stack([chances[row] for row in rows])
        shares = np.arange(1, mixture.experts + 1.0) ** -routing.exponent
        self._shares = np.stack([np.array(row.shares[0]) if row.shares else shares for row in rows])
        if not routing.shares and routing.exponent:
            random = stream(self.seed, "expert popularity")
            normal = _alike(random.standard_normal((max(self.layers) + 1, mixture.experts)), routing.layer_correlation)
            ranked = normal[[*self.layers]].argsort(axis=1)
            self.mean, self._shares = _at(self.mean, ranked), _at(self._shares, ranked)
        self.mean = _filled(self.mean, min(mixture.top_k, mixture.experts))

    def next(self, random: "np.random.Generator") -> Numbers:
        """The chances of the next step."""
        routing, size = self.mixture.routing, self.mean.shape
        if not routing.deviation or self.mixture.top_k >= self.mixture.experts:
            return self.mean
        kept = routing.step_correlation if self._logarithms is not None else 0.0
        news = _alike(random.standard_normal(size), routing.layer_correlation)
        before = 0.0 if self._logarithms is None else self._logarithms
        self._logarithms = kept * before + (1 - kept**2) ** 0.5 * news
        return self._at_present(np.exp(routing.deviation * self._logarithms))

    def _at_present(self, factors: Numbers) -> Numbers:
        """The chances where popularity is *factors* times the usual one, by the rules of `chances_of`."""
        top_k = self.mixture.top_k
        shares = self._shares * factors
        shares /= shares.sum(axis=1, keepdims=True)
        chances = _expected(shares, top_k)
        if self.mixture.routing.shares:  # of pairs, which are chances already
            simple = shares.max(axis=1) * top_k <= 1
            chances[simple] = shares[simple] * top_k
        fixed = np.count_nonzero(shares, axis=1) <= top_k
        chances[fixed] = self.mean[fixed]
        return _filled(chances, top_k)


def _alike(normal: Numbers, correlation: float) -> Numbers:
    """*normal* numbers (layers, experts), each correlated with the one of the layer before; *normal* is overwritten."""
    if correlation:
        for layer in range(1, len(normal)):
            normal[layer] = correlation * normal[layer - 1] + (1 - correlation**2) ** 0.5 * normal[layer]
    return normal


def _expected(shares: Numbers, top_k: int) -> Numbers:
    """Chances of being drawn with replacement until *top_k* different ones are expected; shares add up to 1 by layer.

    Newton's steps from *top_k* draws on, which are too few: the number expected is concave in draws, so that the steps
    never pass the solution.
    """
    draws = np.full((len(shares), 1), float(top_k))
    for _ in range(100):
        missed = np.exp(-draws * shares)
        short = top_k - (1 - missed).sum(axis=1, keepdims=True)
        if float(short.max()) < 1e-9 * top_k:
            break
        draws += short / np.maximum((shares * missed).sum(axis=1, keepdims=True), 1e-300)
    chances: Numbers = 1 - np.exp(-draws * shares)
    return chances


def _filled(chances: Numbers, total: int) -> Numbers:
    """*chances* that add up to *total* in each layer; where fewer experts have any, the others share the rest."""
    lacking = np.count_nonzero(chances, axis=1, keepdims=True)
    rest = (total - lacking) / np.maximum(chances.shape[1] - lacking, 1)
    chances = np.where((lacking < total) & (chances == 0), rest, chances)
    filled: Numbers = np.minimum(chances * (total / chances.sum(axis=1, keepdims=True)), 1.0)
    return filled


def _at(table: Any, places: Ints) -> Any:
    """The values of each layer's row of *table* at *places*, (layers, ...)."""
    return np.take_along_axis(table, places.reshape(len(places), -1), axis=1).reshape(places.shape)


def _numbered(slots: Ints) -> Ints:
    """For each slot, how many slots before it hold the same expert."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    first = np.searchsorted(ordered, ordered)
    numbers = np.empty_like(slots)
    numbers[order] = np.arange(len(slots)) - first
    return numbers


def _counts(chances: Numbers, tokens: int, random: "np.random.Generator") -> Ints:
    """The rows of each expert, (layers, experts), where *tokens* choose by *chances*, which add up to a whole number.

    See the module's text.  Stretch by stretch of all layers' lines, the expert over its first border comes first.
    """
    stretches = round(float(chances[0].sum()))
    order = random.random(chances.shape).argsort(axis=1)
    ends = np.minimum(np.cumsum(_at(chances, order), axis=1), stretches)
    ends[:, -1] = stretches
    starts = np.concatenate([np.zeros((len(ends), 1)), ends[:, :-1]], axis=1)
    counts = np.zeros(chances.shape, dtype=np.int64)
    layers = np.arange(len(chances))
    before = np.zeros(len(chances), dtype=np.int64)  # of the expert over the border, by tokens on the other side
    for stretch in range(stretches):
        first, last = (ends <= stretch).sum(axis=1), (ends < stretch + 1).sum(axis=1)
        lead = np.maximum(stretch - starts[layers, first], 0.0)
        own = np.minimum(ends[layers, first], stretch + 1) - np.maximum(starts[layers, first], stretch)
        chance = np.clip(own / np.maximum(1 - lead, 1e-12), 0.0, 1.0)
        taken = random.binomial(tokens - np.where(lead > 0, before, 0), chance)
        counts[layers, first] += taken
        before = taken
        if (width := int((last - first).max())) > 0:
            places = np.maximum(last[:, None] + np.arange(1 - width, 1), 0)
            parts = np.minimum(_at(ends, places), stretch + 1) - np.maximum(_at(starts, places), stretch)
            parts *= places > first[:, None]
            whole = parts.sum(axis=1, keepdims=True)
            rest = random.multinomial(np.where(whole[:, 0] > 0, tokens - taken, 0), parts / np.maximum(whole, 1e-300))
            counts[layers[:, None], places] += rest
            before = np.where(last > first, rest[:, -1], taken)
    placed_back = np.empty_like(counts)
    np.put_along_axis(placed_back, order, counts, axis=1)
    return placed_back

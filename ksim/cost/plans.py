"""The plans of steps, made of independent parts; one question to the oracle prices all launches that are new."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import define, evolve, field

from ksim.compute.graph import BatchDependent, Block, Op, is_batch_dependent, is_of_adapters
from ksim.compute.model import Model
from ksim.cost import single_batch
from ksim.cost.affine import AffineBlocks, SweptPart
from ksim.cost.graphs import Launching
from ksim.cost.pricer import (
    BatchLaunch,
    Overlap,
    Part,
    Plan,
    PricedLaunch,
    Pricer,
    Shape,
    Summed,
    overlapped,
    paired,
    priced_part,
)
from ksim.cost.single_batch import DualStream, StreamPair
from ksim.flow.steps import KernelCost
from ksim.specs.host import Host
from ksim.specs.shard import Shard

#: What the body of a step, its part before the head, depends on: tokens, those of all data ranks, whether shared
#: experts run on a stream of their own, and missing launches.
_Body = tuple[int, int | None, bool, frozenset[Op]]
#: The rest of a `_Body` that goes over a rank's own tokens alone, and whose batch has something for every launch.
_WHOLE = (None, False, frozenset[Op]())
#: What is priced at once: a launch, or several that overlap.
_Priced = Op | Summed | StreamPair | DualStream
_Launched = Sequence[tuple[Sequence[_Priced], int]]
#: So many numbers of samples, or of tokens, are priced together: of tokens, once a share (`MANY`) of a stretch of so
#: many has been asked for one by one.  A further number costs a seventh of the first, so what is never used pays off.
AROUND, STRETCH, MANY = 16, 256, 1 / 8
#: Plans that are kept.  Few numbers of tokens and samples meet again where no CUDA graph pads them; their parts do, and
#: are kept for good.
MOST = 8192


@define(eq=False)
class Plans:
    """Prices plans by their shape, parts by what they depend on, and launches; each is priced once and kept."""

    model: Model
    shard: Shard
    pricer: Pricer
    host: Host
    overlap: Overlap | None
    average: bool = False
    single_batch: bool = False
    dual_stream: int = 0
    _plans: dict[Shape, Plan] = field(factory=dict, init=False)
    _bodies: dict[_Body, Part] = field(factory=dict, init=False)
    _heads: dict[int, Part] = field(factory=dict, init=False)
    _launches: dict[_Priced, tuple[PricedLaunch, ...]] = field(factory=dict, init=False)
    _batch_launches: dict[tuple[BatchLaunch, ...], tuple[BatchLaunch, ...]] = field(factory=dict, init=False)
    _lacking: dict[frozenset[Op], SweptPart | None] = field(factory=dict, init=False)
    _alone: Counter[int] = field(factory=Counter, init=False)
    _last: tuple[tuple[int, int | None, bool], _Launched] | None = field(default=None, init=False)

    def of(self, shapes: Sequence[Shape]) -> list[Plan]:
        """The plan of each of *shapes*."""
        if len(self._plans) > MOST:
            self._plans.clear()
        if new := [shape for shape in dict.fromkeys(shapes) if shape not in self._plans]:
            self._price_parts(new)
            self._plans.update((shape, self._plan(shape)) for shape in new)
        return [self._plans[shape] for shape in shapes]

    def one(self, shape: Shape) -> Plan:
        """The plan of *shape*."""
        return self._plans.get(shape) or self.of([shape])[0]

    def without(self, plan: Plan, missing: frozenset[Op]) -> Plan:
        """The plan like *plan* of a batch that has nothing for the launches *missing*, either."""
        return self.one((*plan.shape[:-1], plan.shape[-1] | missing))

    def _price_parts(self, shapes: Sequence[Shape]) -> None:
        """Price all new parts of *shapes* together: as columns where their launches are affine in tokens or samples."""
        bodies = dict.fromkeys(key for shape in shapes if (key := self._body_of(shape)) not in self._bodies)
        heads = self._samples({shape[1] for shape in shapes})
        self._sweep_bodies(list(bodies), shapes)
        head = self._swept[1]
        if head and (some := [samples for samples in heads if samples]):  # none launch nothing
            self._heads.update(zip(some, head.parts(some), strict=True))
        self._price_each([key for key in bodies if key not in self._bodies],
                         [samples for samples in heads if samples not in self._heads])

    def _sweep_bodies(self, new: Sequence[_Body], shapes: Sequence[Shape]) -> None:
        """Price as columns the *new* bodies that depend on a rank's own tokens alone."""
        for missing in dict.fromkeys(key[3] for key in new if key[1:3] == (None, False)):
            if all(is_of_adapters(op.kernel) for op in missing) and (body := self._swept_without(missing)):
                some = [key for key in new if key[1:] == (None, False, missing)]
                some += self._nearby(shapes[0]) if len(shapes) == 1 and not missing else []
                self._bodies.update(zip(some, body.parts([key[0] for key in some]), strict=True))

    def _swept_without(self, missing: frozenset[Op]) -> SweptPart | None:
        """The body for any number of tokens without the *missing* launches, which are for adapters."""
        if not missing or self._swept[0] is None or self._lines is None:
            return self._swept[0]
        if missing not in self._lacking:
            self._lacking[missing] = SweptPart.of(self._lines.without(missing), self.pricer)
        return self._lacking[missing]

    def _nearby(self, shape: Shape) -> list[_Body]:
        """New bodies that will probably be asked for soon after that of *shape*: those of about as many tokens.

        There are some only where no CUDA graph pads the tokens, and many numbers nearby have been asked for.
        """
        tokens, _, launching, *_ = shape
        if launching.graphs:  # to whose sizes tokens are padded
            return []
        stretch = tokens // STRETCH
        self._alone[stretch] += 1
        if self._alone[stretch] < MANY * STRETCH:
            return []
        begin = tokens // AROUND * AROUND
        around = ((each, *_WHOLE) for each in range(max(begin, 1), begin + AROUND) if each != tokens)
        return [key for key in around if key not in self._bodies]

    def _price_each(self, keys: Sequence[_Body], samples: Sequence[int]) -> None:
        """Price bodies and heads launch by launch."""
        bodies = {key: self._launched_body(key[:3]) for key in keys}
        heads = {each: self._launched([Block(self.model.sampled(each, self.shard))]) for each in samples}
        self.price([op for part in (*bodies.values(), *heads.values()) for ops, _ in part for op in ops])
        self._bodies.update((key, self._part(launched, key[3])) for key, launched in bodies.items())
        self._heads.update((each, self._part(launched)) for each, launched in heads.items())

    def _samples(self, asked: Collection[int]) -> list[int]:
        """The new ones of the samples *asked* for.

        From the second question on, those around them are added: they cost little more and are asked for soon.
        """
        new = [samples for samples in asked if samples not in self._heads]
        if not self._heads:
            return new
        around = (range(begin, begin + AROUND) for begin in {samples // AROUND * AROUND for samples in new})
        return [samples for each in around for samples in each if samples not in self._heads]

    def _launched_body(self, key: tuple[int, int | None, bool]) -> _Launched:
        """The launches of a body; the last ones are kept, as another batch may have nothing for some of them."""
        if self._last is None or self._last[0] != key:
            self._last = key, self._launched(self._body(*key[:2]), key[2])
        return self._last[1]

    def _body_of(self, shape: Shape) -> _Body:
        """What the body of a step of *shape* depends on."""
        tokens, _, launching, everywhere, missing = shape
        return tokens, everywhere, launching is Launching.FULL and tokens <= self._dual_most, missing

    @cached_property
    def _dual_most(self) -> int:
        """The most tokens of a step whose shared experts have a stream of their own; 0 for a model that has none."""
        if not self.dual_stream or self.overlap or self.single_batch:
            return 0
        ops = (op for block in self.model.body(1, self.shard) for op in single_batch.on_two_streams(block.ops))
        return self.dual_stream if any(isinstance(op, DualStream) for op in ops) else 0

    @cached_property
    def batch_launches(self) -> tuple[BatchLaunch, ...]:
        """What a step launches that depends on its batch, each once."""
        ops = dict.fromkeys(op for block in self.model.body(1, self.shard) for op in block.ops)
        return tuple(BatchLaunch(op.label, op.kernel, 1) for op in ops if is_batch_dependent(op.kernel))

    def _body(self, tokens: int, everywhere: int | None) -> Sequence[Block]:
        """The blocks that go over all tokens; extrapolated where they are affine in a rank's own tokens."""
        if everywhere is None and self._lines:
            return self._lines.at(tokens)
        own = [blocks.at(tokens)[0] if blocks else None for blocks in self._own]
        return self.model.body(tokens, self.shard, everywhere, own)

    @cached_property
    def _own(self) -> list[AffineBlocks | None]:
        """What a mixture launches over a rank's own tokens, stretch by stretch."""
        return AffineBlocks.each(lambda tokens: self.model.own(tokens, self.shard))

    @cached_property
    def _lines(self) -> AffineBlocks | None:
        return AffineBlocks.of(lambda tokens: self.model.body(tokens, self.shard))

    @cached_property
    def _swept(self) -> tuple[SweptPart | None, SweptPart | None]:
        """The body for any number of tokens, and the head for any number of samples."""
        if self.overlap or self.single_batch:
            return None, None
        heads = AffineBlocks.of(lambda samples: [Block(self.model.sampled(samples, self.shard))])
        return SweptPart.of(self._lines, self.pricer), SweptPart.of(heads, self.pricer)

    def head(self, samples: int) -> Part:
        """The part of a step that goes over so many *samples*."""
        if samples not in self._heads:
            self._price_each([], [samples])
        return self._heads[samples]

    def launched(self, shape: Shape) -> _Launched:
        """The launches of a step of *shape*, block by block."""
        tokens, samples, _, everywhere, _ = shape
        return self._launched([*self._body(tokens, everywhere), Block(self.model.sampled(samples, self.shard))],
                              self._body_of(shape)[2])

    def _launched(self, blocks: Sequence[Block], dual: bool = False) -> _Launched:
        """The launches of each of *blocks*, and how often they run."""
        if dual:
            return [(list(single_batch.on_two_streams(block.ops)), block.repeat) for block in blocks]
        if self.single_batch:
            return [(list(single_batch.side_by_side(block.ops, self.pricer.gpu)), block.repeat) for block in blocks]
        return [(list(paired(block.ops, self.overlap)) if self.overlap else block.ops, block.repeat)
                for block in blocks]

    def _part(self, launched: _Launched, missing: frozenset[Op] = frozenset()) -> Part:
        """The part with these launches, all priced but attention: equal layers of it are one batch launch."""
        runs: dict[tuple[str, BatchDependent], int] = {}
        blocks: list[tuple[list[PricedLaunch | int], int]] = []
        for ops, repeat in launched:
            launches: list[PricedLaunch | int] = []
            for op in ops:
                if (priced := self._launches.get(op)) is not None:
                    launches += priced
                elif isinstance(op, Op) and is_batch_dependent(op.kernel) and op not in missing:
                    layer = (op.label, op.kernel)
                    runs[layer] = runs.get(layer, 0) + repeat
                    launches.append([*runs].index(layer))
            blocks.append((launches, repeat))
        known = tuple(BatchLaunch(*layer, count) for layer, count in runs.items())
        return priced_part(blocks, self._batch_launches.setdefault(known, known))

    def _plan(self, shape: Shape) -> Plan:
        _, samples, launching, *_ = shape
        body, head = self._bodies[self._body_of(shape)], self._heads[samples]
        launches = body.launches + head.launches
        return Plan.of(shape, body, head, launches.gaps(launching, self.host.inputs),
                       launches.seconds(launching, self.host.worker))

    def price(self, ops: Sequence[_Priced]) -> Mapping[_Priced, tuple[PricedLaunch, ...]]:
        """Price all of *ops* that are new, most in one question to the oracle; attention waits for its batch.

        Where ranks differ, an op has the time of the fullest rank, unless that of the `average` one is asked for, and
        the work and energy of the average one.
        """
        groups = [op for op in ops if isinstance(op, StreamPair | DualStream) and op not in self._launches]
        ops = [*ops, *(op for group in groups for op in group.ops)]
        new = dict.fromkeys(op for op in ops if op not in self._launches)
        whole: dict[Op, tuple[str, Any]] = {op: (op.label, op.kernel) for op in new
                                            if isinstance(op, Op) and not is_batch_dependent(op.kernel)}
        unequal = {op: (op.label, op.mean) for op in whole if op.mean is not None}
        costs = self.pricer.kernels([*whole.values(), *unequal.values()])
        means = dict(zip(unequal, costs[len(whole):], strict=True))
        self._launches.update(
            (op, (self._launch(kernel, cost, means.get(op)),))
            for (op, (_, kernel)), cost in zip(whole.items(), costs, strict=False))
        if self.overlap:
            self._launches.update((op, tuple(overlapped(self.pricer, op, self.overlap))) for op in new
                                  if isinstance(op, Summed))
        self._launches.update((group, tuple(single_batch.priced(self.pricer, group, self._launches)))
                              for group in groups)
        return self._launches


    def _launch(self, kernel: Any, fullest: KernelCost, mean: KernelCost | None) -> PricedLaunch:
        if mean is None:
            return PricedLaunch(kernel, fullest)
        return PricedLaunch(kernel, mean if self.average else _averaged(fullest, mean))


def _averaged(fullest: KernelCost, mean: KernelCost) -> KernelCost:
    """The time of the *fullest* rank with the work and energy of the *mean* one."""
    share = mean.sm_active_joules if fullest.is_compute_bound else 0.0
    return evolve(fullest, costs=fullest.costs.replaced(
        joules=mean.joules, sm_action_joules=mean.sm_action_joules, sm_active_joules=mean.sm_active_joules,
        compute_bound_joules=share, flops=mean.flops, bytes=mean.bytes))

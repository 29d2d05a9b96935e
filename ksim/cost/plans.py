"""Plans of steps: made of parts that do not depend on each other, all new launches priced in one question."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any

from attrs import define, evolve, field

from ksim.compute.graph import BatchDependent, Block, Op, is_batch_dependent
from ksim.compute.model import Model
from ksim.cost.affine import AffineBlocks
from ksim.cost.grown import Grown
from ksim.cost.overlap import Overlap, Summed, overlapped, paired
from ksim.cost.plan import Hole, Part, Plan, Shape, Sums
from ksim.cost.sheet import sheets
from ksim.cost.spans import Pricer, of_host
from ksim.flow.laps import Laps
from ksim.flow.timeline import Lap, Span
from ksim.specs.deployment import Shard
from ksim.specs.host import Host

#: What the part of a step before its samples depends on.
_Body = tuple[int, int | None, frozenset[Op]]
#: Of a body that goes over a rank's own tokens alone, and has something for every hole.
_WHOLE = (None, frozenset[Op]())
_Launched = Sequence[tuple[Sequence[Op | Summed], int]]
#: Numbers of samples, or of tokens, that are priced together; the latter once a share of so long a stretch of them has
#: been asked for one by one.  A further number costs a seventh of the first: what that wastes, it makes good.
AROUND, STRETCH, MANY = 16, 256, 1 / 8
#: Plans that are kept.  Few numbers of tokens and samples meet again where no CUDA graph pads them; their parts do, and
#: are kept for good.
MOST = 8192


@define(eq=False)
class Plans:
    """Plans by shape, parts by what they depend on, and launches, each priced once."""

    model: Model
    shard: Shard
    pricer: Pricer
    host: Host
    overlap: Overlap | None
    _plans: dict[Shape, Plan] = field(factory=dict, init=False)
    _bodies: dict[_Body, Part] = field(factory=dict, init=False)
    _heads: dict[int, Part] = field(factory=dict, init=False)
    _spans: dict[Op | Summed, tuple[Span, ...]] = field(factory=dict, init=False)
    _holes: dict[tuple[Hole, ...], tuple[Hole, ...]] = field(factory=dict, init=False)
    _alone: Counter[int] = field(factory=Counter, init=False)

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

    def _price_parts(self, shapes: Sequence[Shape]) -> None:
        """Price the parts of *shapes* that are new together: as columns where they grow with what they go over."""
        bodies = dict.fromkeys(key for tokens, _, _, everywhere, missing in shapes
                               if (key := (tokens, everywhere, missing)) not in self._bodies)
        heads = self._samples({shape[1] for shape in shapes})
        whole = [key for key in bodies if key[1:] == _WHOLE] if self._growing[0] else []
        whole += self._nearby(shapes[0]) if len(shapes) == len(whole) == 1 else []
        some = [samples for samples in heads if samples] if self._growing[1] else []  # none launch nothing
        of_bodies, of_heads = self._grown([key[0] for key in whole], some)
        self._bodies.update(zip(whole, of_bodies, strict=True))
        self._heads.update(zip(some, of_heads, strict=True))
        self._price_each([key for key in bodies if key not in self._bodies],
                         [samples for samples in heads if samples not in self._heads])

    def _nearby(self, shape: Shape) -> list[_Body]:
        """New bodies that will be asked for soon, now that *shape*'s is by itself: those around it, where any number of
        tokens is as good as another and many have been asked for."""
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
        bodies = {key: self._launched(self._body(*key[:2])) for key in keys}
        heads = {each: self._launched([Block(self.model.sampled(each, self.shard))]) for each in samples}
        self._price([op for part in (*bodies.values(), *heads.values()) for ops, _ in part for op in ops])
        self._bodies.update((key, self._part(launched, key[-1])) for key, launched in bodies.items())
        self._heads.update((each, self._part(launched)) for each, launched in heads.items())

    def _samples(self, asked: Collection[int]) -> list[int]:
        """Those of the samples *asked* for that are new; from the second question on with those around them, which
        cost little more and are asked for soon."""
        new = [samples for samples in asked if samples not in self._heads]
        if not self._heads:
            return new
        around = (range(begin, begin + AROUND) for begin in {samples // AROUND * AROUND for samples in new})
        return [samples for each in around for samples in each if samples not in self._heads]

    def _body(self, tokens: int, everywhere: int | None) -> Sequence[Block]:
        """What goes over all tokens; where nothing but them says how large it is, from what is known of a few."""
        if everywhere is not None:
            return self.model.body(tokens, self.shard, everywhere)
        return self._lines.at(tokens) if self._lines else self.model.body(tokens, self.shard)

    @cached_property
    def _lines(self) -> AffineBlocks | None:
        return AffineBlocks.of(lambda tokens: self.model.body(tokens, self.shard))

    @cached_property
    def _growing(self) -> tuple[Grown | None, Grown | None]:
        """Bodies by their tokens, and heads by their samples."""
        if self.overlap:
            return None, None
        heads = AffineBlocks.of(lambda samples: [Block(self.model.sampled(samples, self.shard))])
        return Grown.of(self._lines, self.pricer), Grown.of(heads, self.pricer)

    def _grown(self, *numbers: Sequence[int]) -> list[list[Part]]:
        """Bodies of so many tokens each, and heads of so many samples, all asked about in one question."""
        asked = [grown.asked(each) if grown else [] for grown, each in zip(self._growing, numbers, strict=True)]
        found = iter(sheets([kernels for each in asked for kernels in each], self.pricer))
        return [grown.parts(each, list(islice(found, len(own)))) if grown and each else []
                for grown, each, own in zip(self._growing, numbers, asked, strict=True)]

    def _launched(self, blocks: Sequence[Block]) -> _Launched:
        """What each of *blocks* launches, and how often."""
        return [(list(paired(block.ops, self.overlap)) if self.overlap else block.ops, block.repeat)
                for block in blocks]

    def _part(self, launched: _Launched, missing: frozenset[Op] = frozenset()) -> Part:
        """All but attention is priced; equal layers of attention share one hole."""
        holes: dict[tuple[str, BatchDependent], int] = {}
        runs: list[int] = []
        laps = []
        for ops, repeat in launched:
            spans: list[Span | int] = []
            for op in ops:
                if (priced := self._spans.get(op)) is not None:
                    spans += priced
                elif isinstance(op, Op) and is_batch_dependent(op.kernel) and op not in missing:
                    hole = holes.setdefault((op.label, op.kernel), len(holes))
                    runs += [0] * (len(holes) - len(runs))
                    runs[hole] += repeat
                    spans.append(hole)
            laps.append(Lap(tuple(spans), repeat))
        found = tuple((label, layer, runs[hole]) for (label, layer), hole in holes.items())
        return Part.of(laps, self._holes.setdefault(found, found))

    def _plan(self, shape: Shape) -> Plan:
        tokens, samples, launching, everywhere, missing = shape
        body, head = self._bodies[tokens, everywhere, missing], self._heads[samples]
        launches = body.launches + head.launches
        gaps = of_host("gaps", launches.gaps(launching, self.host.inputs))
        sums = Sums.of(body.totals, head.totals)
        sums.seconds += gaps.seconds
        laps = Laps(partial(_laps, body, head, gaps))
        return Plan(shape, laps, body.holes, sums, launching.value, launches.seconds(launching, self.host.worker))

    def _price(self, ops: Sequence[Op | Summed]) -> None:
        """Price all of *ops* that are new, most in one question to the oracle; layers wait for their batch.

        Of what ranks do unequally, the fullest one's time counts, and the work and energy of what they do on average.
        """
        new = dict.fromkeys(op for op in ops if op not in self._spans)
        whole: dict[Op, tuple[str, Any]] = {op: (op.label, op.kernel) for op in new
                                            if isinstance(op, Op) and not is_batch_dependent(op.kernel)}
        unequal = {op: (op.label, op.mean) for op in whole if op.mean is not None}
        spans = self.pricer.spans([*whole.values(), *unequal.values()])
        self._spans.update((op, (span,)) for op, span in zip(whole, spans, strict=False))
        for op, mean in zip(unequal, spans[len(whole):], strict=True):
            (fullest,) = self._spans[op]
            self._spans[op] = (evolve(fullest, joules=mean.joules, core_joules=mean.core_joules,
                                      busy_joules=mean.busy_joules, flops=mean.flops, bytes=mean.bytes),)
        if self.overlap:
            self._spans.update((op, overlapped(self.pricer, op, self.overlap)) for op in new if isinstance(op, Summed))


def _laps(body: Part, head: Part, gaps: Span) -> Iterator[Lap]:
    """Those of a step: its inputs, which have the last hole, its *body*, whose last lap goes on with its *head*."""
    *laps, last = body.laps
    yield Lap((len(body.holes),))
    yield from laps
    yield Lap((*last.spans, *head.laps[0].spans))
    yield Lap((gaps,))

"""The sizes of the indices in a model's equations, over the whole model and on one rank.

Each letter has one meaning in all models:

    t  tokens of the step           m  hidden (model) size         V  vocabulary
    s  sequences, for logits        K  key/value heads             E  experts
    x  token-expert pairs           r  query heads per KV head     F  size of the MLP
    z  context attended to          i  r + 2: queries, key, value  f  size of one expert
    T  tokens of all data ranks     h  head dimension              S  size of the shared experts
                                    l  2r + 2: i and gates         g  2: gate and up

x counts the pairs of one rank, the fullest or an average one.  "top_k" is how many experts a token goes to,
"groups" into how many groups of neighbours they are divided, and "chosen" in how many of these a token's are.

Letters with a cedilla or an ogonek, Ķ, ŗ, ḩ, į and ļ, are K, r, h, i and l of layers with heads of another shape, and
Ɇ is F of layers with another MLP.  Hidden states side by side (AltUp, hyper-connections), and layers with embeddings
of their own:

    H  hidden states of a token     P  coefficients that mix them  R  rank of a Laurel block
    e  size of a layer's embedding  Q  that of all layers          C  rows of the table of it

Latent attention, whose K heads have keys and values of their own:

    q  rank of the queries          n  content of a key            v  value
    c  latent vector                p  rotary part of a key        d  n + p: query, key
    b  c + p: cached of a token     u  q + b: all projected down   w  n + v: key and value

    k  heads of its indexer         j  size of one                 a  j + k: its key and weights
                                                                   y  j + 4: bytes it caches

Linear attention:

    G  key heads                    e  size of a head              Z  2o + 2: query, key, values, gates
    o  value heads per key head     W  tokens of the convolution   Y  o + 2: query, key, values

States that decay (Mamba-2 has G groups of o heads of size e, and W; lightning attention G heads of size e):

    N  states                       U  2oe + 2N + o: gate, input,  X  oe + 2N: input, both vectors
    J  3: query, key, value            two vectors, time step

Mamba, whose channels have no heads:

    I  channels                     R  rank of the time step       Q  R + 2N: it and both vectors

A is 1, the size of the gate of shared experts that have one.  L is the size of the latent vector that experts work on.
C counts the rows of a table of learned positions.

Heads that draft, which read hidden states of their target:

    O  what the first projection    B  2m: embedding and hidden    D  vocabulary of the drafter
       reads, and M what it writes     state side by side

Einsum equations: parsed, checked, and turned into matrix products.

``bsm,mF->bsF`` names the indices of each operand and of the result, one letter each.  Indices of both operands and the
result are the batch, those of the left operand alone the rows (M), those of the right alone the columns (N), and those
that the result lacks are contracted (K).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, cached_property, reduce
from math import ceil, prod

from attrs import evolve, frozen

from ksim.foundation.errors import ConfigError
from ksim.specs.shard import Shard

#: (rows, number of experts with so many), without the experts that have none; an average rank has fractions of experts.
MeanExpertRows = tuple[tuple[int, float], ...]
#: Pairs of an index and the group of ranks that splits it.
Splits = tuple[tuple[str, str], ...]

#: By the index of KV heads, those of all that follow from how ranks split them; the other shape's have a cedilla.
HEADS = {"K": "Kril", "Ķ": "Ķŗįļ"}


@frozen
class Sizes:
    """The size of each index over the whole model and step; `expert_rows` are those of the experts on one rank."""

    of: Mapping[str, int]
    expert_rows: MeanExpertRows = ()

    def volume(self, indices: Iterable[str]) -> int:
        """The number of elements of a tensor over *indices*."""
        return prod(self.of[index] for index in indices)

    def on(self, splits: Splits, shard: Shard, label: str = "") -> "Sizes":
        """The sizes on one rank of *shard*; errors may name the *label* of the operation that is split.

        Plug-ins of earlier releases give the index alone, as a text.
        """
        return reduce(lambda sizes, pair: sizes._split_on(pair[0], shard), splits, self)

    def _split_on(self, index: str, shard: Shard) -> "Sizes":
        """The sizes on one rank of *shard* that splits *index*.

        With expert parallelism, f stands for whole experts and their copies; the first ranks have one more where they
        do not divide.  S stands for tokens where the ranks divide these before the experts.
        """
        if index == "S" and shard.scattered:
            return evolve(self, of={**self.of, "t": ceil(self.of.get("t", 0) / shard.tensor)})
        if index == "f" and shard.expert_parallel:
            dealt = evolve(self, of={**self.of, "E": shard.placement.slots(self.of["E"], shard.expert_groups)})
            return dealt.split("f", shard.slices)
        return self.split(index, shard.expert_ranks if index == "f" else shard.tensor)

    def split(self, index: str, ways: int) -> "Sizes":
        """The sizes on one of *ways* ranks that split *index*; "" is split by none.

        With fewer KV heads than ranks, each rank has one KV head and a part of its query heads, as in vLLM.
        Vocabularies are padded.  Raises ConfigError for *ways* that do not divide any other index.
        """
        if not index or ways == 1:
            return self
        size = self.of[index]
        if index in "VDC":
            return evolve(self, of={**self.of, index: ceil(size / ways)})
        if index in HEADS:
            return self._split_heads(ways, HEADS[index])
        if index == "G" and "U" in self.of:
            return self._split_groups(ways)
        if size % ways:
            what = f"{size} heads of linear attention" if index == "G" else f"an MLP of {size}"
            raise ConfigError("tensor_parallel_size", f"{ways} does not divide {what}")
        return evolve(self, of={**self.of, index: size // ways})

    def _split_heads(self, ways: int, indices: str) -> "Sizes":
        kv_heads, heads = self.of[indices[0]], self.of[indices[0]] * self.of[indices[1]]
        if heads % ways or (kv_heads % ways and ways % kv_heads):
            raise ConfigError("tensor_parallel_size", f"{ways} does not divide {heads} attention heads"
                                                      f" with {kv_heads} key/value heads")
        kv_heads = max(1, kv_heads // ways)
        group = heads // ways // kv_heads
        split = zip(indices, (kv_heads, group, group + 2, 2 * group + 2), strict=True)
        return evolve(self, of={**self.of, **dict(split)})

    def _split_groups(self, ways: int) -> "Sizes":
        """Mamba-2's groups of heads; a single one is shared out by its heads, and each rank has its two vectors.

        vLLM splits no other number of groups further (mamba_mixer2.py).
        """
        groups, heads = self.of["G"], self.of["o"]
        shared = groups == 1 and ways > 1
        if (heads if shared else groups) % ways:
            raise ConfigError("tensor_parallel_size", f"{ways} does not divide {groups * heads} Mamba-2 heads in"
                                                      f" {groups} {'group' if shared else 'groups'}")
        if not shared:
            return evolve(self, of={**self.of, "G": groups // ways})
        return evolve(self, of={**self.of, **of_groups(1, heads // ways, self.of["e"], self.of["N"])})


def of_groups(groups: int, heads: int, size: int, states: int) -> dict[str, int]:
    """The sizes of so many groups of so many Mamba-2 heads each."""
    return {"G": groups, "o": heads, "e": size, "N": states, "U": 2 * heads * size + 2 * states + heads,
            "X": heads * size + 2 * states}


@frozen
class Contraction:
    """A product of two operands, each a string of indices."""

    left: str
    right: str
    out: str

    @cached_property
    def batch(self) -> str:
        return _select(self.left, lambda index: index in self.right and index in self.out)

    @cached_property
    def rows(self) -> str:
        return _select(self.out, lambda index: index not in self.right)

    @cached_property
    def columns(self) -> str:
        return _select(self.out, lambda index: index in self.right and index not in self.left)

    @cached_property
    def depth(self) -> str:
        """The indices that are contracted."""
        return _select(self.right, lambda index: index not in self.out)


def _select(indices: str, keeps: Callable[[str], bool]) -> str:
    return "".join(filter(keeps, indices))


@frozen
class Equation:
    """An equation that `parse` has read."""

    text: str
    operands: tuple[str, ...]
    results: tuple[str, ...]

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        return (*self.operands, *self.results)

    @cached_property
    def indices(self) -> str:
        """Each index once, in order of appearance."""
        return "".join(dict.fromkeys("".join(self.tensors)))

    def wrong(self, problem: str) -> ValueError:
        return ValueError(f"{self.text!r}: {problem}")

    def of(self, *operands: int) -> "Equation":
        """This equation; raises ValueError for another number of *operands*, or more than one result."""
        if len(self.operands) not in operands:
            expected = " or ".join(map(str, operands)) + (" operand" if operands == (1,) else " operands")
            raise self.wrong(f"expected {expected}, with commas between them, not {len(self.operands)}")
        if len(self.results) > 1:
            raise self.wrong(f"expected one result, not {len(self.results)}")
        return self

    def check(self, free: Collection[str] = ()) -> None:
        """Raise ValueError for an index, unless *free*, of the result alone, or of one input alone."""
        out = {*self.results[0]}
        if lost := out.difference(*self.operands, free):
            raise self.wrong(f"index {min(lost)!r} of the result is in no input")
        inputs = "".join(self.operands)
        if unsummed := {index for index in inputs if inputs.count(index) == 1} - out - {*free}:
            raise self.wrong(f"index {min(unsummed)!r} is in one input only and not in the result")

    @cached_property
    def contractions(self) -> tuple[Contraction, ...]:
        """The pairwise products, from left to right; each result keeps the indices that are still needed."""
        left, *others = self.operands
        products = []
        for number, right in enumerate(others, 1):
            later = "".join((*others[number:], self.results[0]))
            out = _select("".join(dict.fromkeys(left + right)), later.__contains__)
            products.append(Contraction(left, right, out if others[number:] else self.results[0]))
            left = out
        return tuple(products)


@cache
def parse(text: str) -> Equation:
    """The equation written as *text*; raises ValueError for what is none."""
    inputs, arrow, outputs = text.partition("->")
    read = Equation(text, tuple(inputs.split(",")), tuple(outputs.split(",")))
    if not arrow or "->" in outputs:
        raise read.wrong("expected one arrow between inputs and result, as in 'bsm,mF->bsF'")
    for tensor in read.tensors:
        if not tensor:
            raise read.wrong("expected indices on both sides of each comma and of the arrow")
        if strange := [letter for letter in tensor if not letter.isalpha()]:
            raise read.wrong(f"{strange[0]!r} is no index; each is one letter, with nothing between them")
        if twice := [index for index in tensor if tensor.count(index) > 1]:
            raise read.wrong(f"index {twice[0]!r} is twice in {tensor!r}")
    return read

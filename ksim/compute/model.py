"""A whole model: its config, its size in memory, and the kernels that one rank launches for a step."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from ksim.compute.expert_rows import MeanExpertRows, Mixture, average_rank, fullest_rank
from ksim.compute.graph import BatchDependent, Block, Collective, KernelGraph, Op, fold
from ksim.compute.notation import Operation, cached, stateful, weighted
from ksim.compute.notation.communicate import Communicate, Send
from ksim.compute.notation.product import Product
from ksim.compute.sizes import Sizes
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.shard import Routing, Shard

T = TypeVar("T", int, bool, str, list[Any], dict[str, Any])
_WORDS = {int: "a whole number", bool: "true or false", str: "a text", list: "a list", dict: "a table"}


#: A pipeline stage sends the hidden state and, since norms are fused with the addition, the residual: each of its ranks
#: sends a slice to its peer, and the ranks of the next stage gather the slices, as in vLLM.
HAND_ON = (Send("tm", "send_hidden"), Send("tm", "send_residual"))
TAKE_OVER = tuple(Communicate("all_gather", "tm", label=label) for label in ("gather_hidden", "gather_residual"))
#: No model has larger numbers than these, and they would take for ever to work with.
MOST = 2**31
_MOST = {"num_hidden_layers": 2000, "num_experts": 2**16, "n_routed_experts": 2**16, "num_local_experts": 2**16}


@frozen
class Config:
    """A Hugging Face ``config.json``; `name` is for messages."""

    name: str
    table: Mapping[str, Any]

    def need(self, key: str, default: int = 0) -> int:
        """The positive whole number under *key*, or *default* where it is absent or null.

        Raises ConfigError for another value, for one larger than any model has, or if there is neither value nor
        default.
        """
        value, most = self.get(key, default), _MOST.get(key, MOST)
        if value < 1:
            problem = "is missing" if self.table.get(key) is None else f"expected a positive whole number, not {value}"
            raise ConfigError(f"{self.name}: {key}", problem)
        if value > most:
            raise ConfigError(f"{self.name}: {key}", f"{value} is more than any model has; the most is {most}")
        return value

    def count(self, key: str) -> int:
        """The whole number under *key*, which may be 0 and is where it is absent; raises ConfigError for a negative."""
        if (value := self.get(key, 0)) < 0:
            raise ConfigError(f"{self.name}: {key}", f"expected a whole number from 0, not {value}")
        return value

    def factor(self, key: str) -> float:
        """The positive number under *key*, 1 where it is absent; raises ConfigError for another value."""
        value = self.table.get(key)
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
            raise ConfigError(f"{self.name}: {key}", f"expected a positive number, not {value!r}")
        return float(value)

    def part(self, key: str) -> "Config":
        """The table under *key*, empty where it is absent; raises ConfigError for another value."""
        return Config(f"{self.name}: {key}", self.get(key, {}))

    def texts(self, key: str) -> list[str]:
        """The list of texts under *key*, empty where it is absent; raises ConfigError for another value."""
        texts = self.get(key, [])
        if strangers := [value for value in texts if not isinstance(value, str)]:
            raise ConfigError(f"{self.name}: {key}", f"expected texts, not {strangers[0]!r}")
        return texts

    def get(self, key: str, default: T) -> T:
        """The value under *key*, or *default* where it is absent or null; raises ConfigError for another type."""
        value = self.table.get(key)
        if value is None:
            return default
        if type(value) is not type(default):
            raise ConfigError(f"{self.name}: {key}", f"expected {_WORDS[type(default)]}, not {value!r}")
        return value


@frozen
class Decoder:
    """What an architecture file makes of a config: operations, and the sizes of their indices.

    `layers` has one entry a layer.  Operations of the `head` run over all tokens, from number `sampled` on over the
    last token of each sequence.  A `tied` model uses the embedding's weights in its head.  Each token goes to `top_k`
    experts, if there are any.  `quantization` is the checkpoint's, by the engine's name for it, but for its
    `unquantized` parts; `kv_cache_dtype` likewise.  `inputs` come first on every pipeline stage.
    """

    sizes: Mapping[str, int]
    embedding: Sequence[Operation]
    layers: Sequence[Sequence[Operation]]
    head: Sequence[Operation]
    max_length: int
    tied: bool = False
    top_k: int = 0
    quantization: str = "none"
    unquantized: tuple[str, ...] = ()
    kv_cache_dtype: str = "auto"
    sampled: int = 1
    inputs: Sequence[Operation] = ()


@frozen
class Model:
    """A decoder-only transformer."""

    name: str
    decoder: Decoder = field(repr=False)

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens that the model was made for."""
        return self.decoder.max_length

    @property
    def layers(self) -> int:
        return len(self.decoder.layers)

    def parameters(self) -> int:
        """The number of weights; tied ones count once."""
        sizes, decoder = Sizes(self.decoder.sizes), self.decoder
        operations = chain(decoder.embedding, *decoder.layers, decoder.head)
        total = sum(op.parameters(sizes) for op in weighted(operations))
        return total - decoder.tied * sizes.volume("mV")

    def active_parameters(self) -> int:
        """The number of weights that each token meets; fewer than all where there are experts."""
        sizes = self.decoder.sizes
        active = Sizes({**sizes, "E": self.decoder.top_k}) if self.decoder.top_k else Sizes(sizes)
        idle = sum(op.parameters(Sizes(sizes)) - op.parameters(active)
                   for layer in self.decoder.layers for op in layer if isinstance(op, Product) and op.routed)
        return self.parameters() - idle

    def weights(self, shard: Shard) -> float:
        """Bytes of weights on one rank."""
        sizes = Sizes(self.decoder.sizes)
        total = sum(op.weights(sizes, shard) for op in weighted(self._stage(shard)))
        if self.decoder.tied and shard.first and shard.last:
            total -= sizes.split("V", shard.tensor).volume("mV") * DType.BF16.bytes
        return total

    def cache_per_token(self, shard: Shard) -> float:
        """Bytes of KV cache that one token takes on one rank."""
        sizes = Sizes(self.decoder.sizes)
        return sum(op.cache_per_token(sizes, shard) for op in cached(self._stage(shard)))

    def cache_by_layer(self, shard: Shard) -> list[tuple[float, float]]:
        """Bytes of KV cache of one token, and of one sequence beside it, on one rank, for each layer of its stage."""
        sizes = Sizes(self.decoder.sizes)
        layers = [self.decoder.layers[layer] for layer in shard.share(self.layers)]
        return [(sum(op.cache_per_token(sizes, shard) for op in cached(layer)),
                 sum(op.state_per_sequence(sizes, shard) for op in stateful(layer))) for layer in layers]

    def state_per_sequence(self, shard: Shard) -> float:
        """Bytes of one sequence on one rank beside its KV cache, such as the state of linear attention."""
        sizes = Sizes(self.decoder.sizes)
        return sum(op.state_per_sequence(sizes, shard) for op in stateful(self._stage(shard)))

    def _stage(self, shard: Shard) -> Iterator[Operation]:
        """The operations of the pipeline stage that *shard* is of."""
        for layer in shard.share(self.layers):
            yield from self.decoder.layers[layer]
        yield from self.decoder.embedding if shard.first else ()
        yield from self.decoder.head if shard.last else ()

    def graph(self, tokens: int, samples: int, shard: Shard, everywhere: int | None = None) -> KernelGraph:
        """What one rank launches for a step of *tokens* tokens, with logits for *samples* sequences.

        These are all sequences: vLLM computes logits for partial prompts too, and drops the samples.  *everywhere* is
        the number of tokens on all data ranks together, by default as many on each.
        """
        *blocks, last = self.body(tokens, shard, everywhere)
        return KernelGraph((*blocks, Block((*last.ops, *self.sampled(samples, shard)))))

    def body(self, tokens: int, shard: Shard, everywhere: int | None = None) -> list[Block]:
        """The launches over all tokens; the last block is the head's, up to where its rows are sequences."""
        step = {"t": tokens, "T": tokens * shard.data if everywhere is None else everywhere,
                "top_k": self.decoder.top_k}
        sizes, decoder = Sizes({**self.decoder.sizes, **step}), self.decoder
        held = [(decoder.layers[i], shard.routing.at(i)) for i in shard.share(self.layers)]
        blocks = [Block(tuple(chain.from_iterable(_layer(layer, sizes, shard, routing) for layer, routing in layers)),
                        repeat) for layers, repeat in fold(held)]
        first = decoder.embedding if shard.first else TAKE_OVER
        blocks.insert(0, Block(_lower((*decoder.inputs, *first), sizes, shard)))
        blocks.append(Block(_lower(decoder.head[:decoder.sampled] if shard.last else HAND_ON, sizes, shard)))
        return blocks

    def sampled(self, samples: int, shard: Shard) -> tuple[Op, ...]:
        """The launches of the head whose rows are *samples* sequences."""
        decoder = self.decoder
        sizes = Sizes({**decoder.sizes, "s": samples})
        return _lower(decoder.head[decoder.sampled:], sizes, shard) if shard.last else ()


def _layer(layer: Sequence[Operation], sizes: Sizes, shard: Shard, routing: Routing) -> tuple[Op, ...]:
    """One layer's launches on the rank with most token-expert pairs, and as `mean` those of the average rank."""
    if not sizes.of["top_k"]:
        return _lower(layer, sizes, shard)
    mixture = Mixture(sizes.of["top_k"], sizes.of["E"], routing, shard.expert_groups, shard.placement)
    full = _lower(layer, _routed(sizes, fullest_rank(sizes.of["T"], mixture)), shard)
    if mixture.ranks == 1:
        return full
    mean = _lower(layer, _routed(sizes, average_rank(sizes.of["T"], mixture)), shard)
    return tuple(_at_mean(op, other) for op, other in zip(full, mean, strict=True))


def _routed(sizes: Sizes, expert_rows: MeanExpertRows) -> Sizes:
    """*sizes* with *expert_rows*, and with x, the number of pairs, rounded."""
    pairs = round(sum(rows * experts for rows, experts in expert_rows))
    return Sizes({**sizes.of, "x": max(pairs, 1) if expert_rows else 0}, expert_rows)


def _at_mean(op: Op, mean: Op) -> Op:
    """*op* with the kernel of *mean*, if that is another."""
    kernel = mean.kernel
    return op if kernel == op.kernel or isinstance(kernel, BatchDependent | Collective) else evolve(op, mean=kernel)


def _lower(operations: Sequence[Operation], sizes: Sizes, shard: Shard) -> tuple[Op, ...]:
    return tuple(launch for operation in operations for launch in operation.lower(sizes, shard))

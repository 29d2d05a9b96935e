"""The cache curve of `ksim trace`: its sizes, its tables, its JSON and its figure."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import frozen

from ksim.cli.flags import words_of
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.units import GIB, measured
from ksim.views.tables import Table

if TYPE_CHECKING:
    from ksim.workload.replay import Replay
    from ksim.workload.statistics import CacheCurve, Hits

_PANEL = "Cache curve"
CurveFlag = Annotated[bool, typer.Option("--cache-curve", rich_help_panel=_PANEL, help="show how often a prefix cache"
                                         " hits, by its size, in place of the statistics")]
BlockSize = Annotated[int | None, typer.Option("--block-size", min=1, rich_help_panel=_PANEL, help="tokens in a block;"
                                               " by default those that a block id of the trace stands for")]
CacheSizes = Annotated[str, typer.Option("--cache-sizes", metavar="SIZE,...", rich_help_panel=_PANEL, help="sizes to"
                                         " show: numbers of blocks or, with --model, bytes such as 80GiB")]
Tiers = Annotated[list[str] | None, typer.Option("--tier", metavar="NAME=SIZE", rich_help_panel=_PANEL, help="a tier of"
                                                 " KV, the fastest first, such as gpu=40GiB; repeat it for each")]
Model = Annotated[str, typer.Option("--model", rich_help_panel=_PANEL, help="model whose KV fills the cache: sizes are"
                                    " shown in GiB, too")]
KvCacheDtype = Annotated[str | None, typer.Option("--kv-cache-dtype", rich_help_panel=_PANEL, help="format of its KV"
                                                  " cache, if not that of its config.json")]
TensorParallel = Annotated[int | None, typer.Option("--tensor-parallel-size", "--tp", "-tp", min=1,
                                                    rich_help_panel=_PANEL, help="GPUs that share each of its layers;"
                                                    " those that hold the same heads hold the same KV")]
#: Points of a line in the figure.
_POINTS = 60
_TITLES = {"lru": "LRU", "lru_tails_first": "tails first", "ideal": "ideal"}


@frozen
class Asked:
    """What is asked of the curve."""

    block_size: int | None = None
    sizes: str = ""
    tiers: Sequence[str] = ()
    model: str = ""
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None

    def refuse(self) -> None:
        """Raise ConfigError where anything is asked for, of which only the curve has use."""
        flags = {"--block-size": self.block_size, "--cache-sizes": self.sizes, "--tier": self.tiers,
                 "--model": self.model, **self._of_model()}
        if unused := [flag for flag, value in flags.items() if value]:
            raise ConfigError(unused[0], "is about the cache curve; add --cache-curve")

    def bytes_per_token(self) -> float:
        """Bytes of KV of a token, 0 without a model."""
        from ksim.cli.flags import given
        from ksim.foundation.config import structure
        from ksim.scenario.model_card import kv_bytes_per_token
        from ksim.specs.settings import EngineSettings

        serve = given({"kv_cache_dtype": self.kv_cache_dtype, "tensor_parallel_size": self.tensor_parallel_size})
        if self.model:
            return kv_bytes_per_token(self.model, structure(EngineSettings, serve, "trace"))
        if unused := [flag for flag, value in self._of_model().items() if value]:
            raise ConfigError(unused[0], "says how large the KV of a model is; add --model")
        return 0.0

    def _of_model(self) -> dict[str, Any]:
        return {"--kv-cache-dtype": self.kv_cache_dtype, "--tensor-parallel-size": self.tensor_parallel_size}


@frozen
class Shown:
    """A curve with the sizes and tiers to show, in blocks; `block_bytes` is 0 without a model."""

    curve: "CacheCurve"
    block_bytes: float
    sizes: Sequence[int]
    tiers: dict[str, int]

    @classmethod
    def of(cls, replay: "Replay", asked: Asked) -> "Shown":
        """Read the trace and measure it; raises KsimError for sizes that cannot be, and if nothing is shared."""
        bytes_per_token = asked.bytes_per_token()
        curve = _curve(replay, asked.block_size)
        size = bytes_per_token * curve.block_tokens
        tiers = dict(_tier(text, size) for text in asked.tiers)
        if len(tiers) < len(asked.tiers):
            raise ConfigError("--tier", "names a tier twice")
        sizes = [_blocks("--cache-sizes", word, size) for word in words_of(asked.sizes)]
        return cls(curve, size, sorted({*sizes}) or curve.sizes(), tiers)

    def heading(self) -> str:
        reuse = self.curve.reuse
        return (f"cache curve: blocks of {self.curve.block_tokens:,} tokens; {reuse.prompt_blocks:,} in all prompts, of"
                f" {reuse.distinct:,} different ones that a cache is shown")

    def parts(self) -> Iterator[Table | str]:
        yield self._by_size()
        if self.tiers:
            yield self._by_tier()
        if not len(self.curve.reuses.by):
            yield "No two prompts begin with the same block, so no cache has a hit."
        yield ("LRU: a prompt's first blocks are used first, and leave first (Mooncake). Tails first: its last ones do"
               " (vLLM).\nIdeal: the cache knows the future, and may leave blocks out (Belady). docs/traces.md says how"
               " hits are counted.")

    def _by_size(self) -> Table:
        made = Table.of(*self._size_columns("blocks"), *(f">{title}" for title in _TITLES.values()),
                        *(f">{title}, blocks" for title in _TITLES.values()),
                        title="Hit rate: share of prompt tokens, and of prompt blocks",
                        hide=[f"{title}, blocks" for title in _TITLES.values()])
        for blocks in self.sizes:
            rates = [self.curve.rates(self.curve.hits(policy, blocks)) for policy in _TITLES]
            made.add_row(*self._size_cells(blocks), *(f"{tokens:.5f}" for _, tokens in rates),
                         *(f"{share:.5f}" for share, _ in rates))
        return made

    def _by_tier(self) -> Table:
        made = Table.of("tier", *self._size_columns("blocks"), *(f">{title}" for title in _TITLES.values()),
                        *(f">{title}, inclusive" for title in _TITLES.values()),
                        title="Hits that each tier adds, share of prompt tokens: exclusive, and inclusive",
                        hide=[f"{title}, inclusive" for title in _TITLES.values()])
        for tier in self.curve.tiers(self.tiers):
            shares = [f"{self.curve.rates(hits)[1]:.5f}" for view in (tier.exclusive, tier.inclusive)
                      for hits in view.values()]
            made.add_row(tier.name, *self._size_cells(tier.blocks), *shares)
        return made

    def _size_columns(self, name: str) -> list[str]:
        return [f">{name}", ">tokens", *([">GiB"] if self.block_bytes else [])]

    def _size_cells(self, blocks: int) -> list[str]:
        size = [f"{blocks * self.block_bytes / GIB:,.2f}"] if self.block_bytes else []
        return [f"{blocks:,}", f"{blocks * self.curve.block_tokens:,}", *size]

    def as_json(self) -> dict[str, Any]:
        reuse = self.curve.reuse
        return {
            "block_tokens": self.curve.block_tokens, "block_bytes": self.block_bytes or None,
            "requests": reuse.requests, "prompt_blocks": reuse.prompt_blocks, "prompt_tokens": reuse.prompt_tokens,
            "different_blocks": reuse.distinct,
            "sizes": [{"blocks": blocks, **{policy: self._rates(self.curve.hits(policy, blocks)) for policy in _TITLES}}
                      for blocks in self.sizes],
            "tiers": [{"name": tier.name, "blocks": tier.blocks,
                       "exclusive": {policy: self._rates(hits) for policy, hits in tier.exclusive.items()},
                       "inclusive": {policy: self._rates(hits) for policy, hits in tier.inclusive.items()}}
                      for tier in self.curve.tiers(self.tiers)]}

    def _rates(self, hits: "Hits") -> dict[str, float]:
        blocks, tokens = self.curve.rates(hits)
        return {"hit_blocks": hits.blocks, "hit_tokens": hits.tokens, "hit_rate_blocks": blocks,
                "hit_rate_tokens": tokens}

    def draw(self, path: Path, title: str) -> Path:
        """Draw hit rates over the size of the cache; tiers are marked where they end, one behind the other."""
        from itertools import accumulate

        import numpy as np

        from ksim.views.figures.studies import cache_chart

        ends = dict(zip(self.tiers, accumulate(self.tiers.values()), strict=True))
        shown = [*self.curve.sizes(), *self.sizes, *ends.values()]
        sizes = sorted({*np.geomspace(min(shown), max(shown), _POINTS).astype(int).tolist(), *shown})
        rates = {name: [self.curve.rates(self.curve.hits(policy, size))[1] for size in sizes]
                 for policy, name in _TITLES.items()}
        unit = self.block_bytes / GIB or 1
        return cache_chart(
            [size * unit for size in sizes], rates, {name: end * unit for name, end in ends.items()}, title,
            "GiB of KV" if self.block_bytes else f"blocks of {self.curve.block_tokens} tokens").save(path)


def _curve(replay: "Replay", block_size: int | None) -> "CacheCurve":
    import attrs

    from ksim.workload.statistics import CacheCurve, Reuse

    # Only the order of the arrivals counts.
    timed = replay if replay.clock() else attrs.evolve(replay, rate=1.0)
    named = next((request.chunk_tokens for request in timed.requests(0) if request.chunks), 0)
    if not named:
        raise DataError(str(replay.path), "names no blocks of its prompts, so no cache is known to hit; the cache curve"
                                          " needs a trace with shared prefixes, such as hash_ids (see docs/traces.md)")
    return CacheCurve.of(Reuse.of(timed.requests(0), block_size or named))


def _tier(text: str, block_bytes: float) -> tuple[str, int]:
    name, equals, size = (part.strip() for part in text.partition("="))
    if not (name and equals):
        raise ConfigError("--tier", f"expected NAME=SIZE, such as cpu=200GiB, not {text!r}")
    return name, _blocks("--tier", size, block_bytes)


def _blocks(flag: str, text: str, block_bytes: float) -> int:
    """The whole blocks in a size, which is a number of blocks or, of *block_bytes* each, a number of bytes."""
    blocks = int(text) if text.isdecimal() else 0
    if not text.isdecimal():
        try:
            size = measured(text, "B")
        except ValueError as error:
            raise ConfigError(flag, f"expected a number of blocks, or bytes such as 80GiB: {error}") from None
        if not block_bytes:
            raise ConfigError(flag, f"{text} is in bytes, and how many a block takes depends on the model; add --model")
        blocks = int(size // block_bytes)
    if blocks < 1:
        raise ConfigError(flag, f"{text} is less than a block"
                                + (f" of {block_bytes:,.0f} bytes" if block_bytes else "; give at least 1"))
    return blocks

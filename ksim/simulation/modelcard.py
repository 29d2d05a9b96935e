"""A model on one page: its parameters by part, its formats, its cache, and what fits where."""

from collections.abc import Sequence
from typing import Any

from attrs import asdict, frozen

from ksim.compute.breakdown import AttentionKind, ModelPart, attention_kinds, model_parts
from ksim.compute.model import Model
from ksim.foundation import catalog
from ksim.simulation.defaults import Defaults
from ksim.simulation.fits import Fit, fits
from ksim.simulation.lookup import engine_of, gpu_of, model_of
from ksim.specs.deployment import EngineSettings, Shard

__all__ = ["ModelCard"]


@frozen
class ModelCard:
    """What `ksim model` shows; `settings` are complete but for what depends on the GPU."""

    model: Model
    settings: EngineSettings
    parts: tuple[ModelPart, ...]
    kinds: tuple[AttentionKind, ...]
    fits: tuple[Fit, ...]

    @classmethod
    def of(cls, name: str, gpus: Sequence[str], settings: EngineSettings, engine: str,
           ways: Sequence[int] = ()) -> "ModelCard":
        """The model called *name* on *gpus*, all of the catalogue's if there are none, at tensor-parallel sizes *ways*.

        Raises KsimError for a model, GPU or release that is none, and for settings that the model cannot have.
        """
        model, version, gpus = model_of(name), engine_of(engine), gpus or catalog.entries("gpus")
        complete = Defaults(settings, version, model, gpu_of(gpus[0])).complete()
        shard = Shard(precision=complete.precision)
        return cls(model, complete, tuple(model_parts(model, shard)), tuple(attention_kinds(model, shard)),
                   tuple(fits(model, gpus, settings, version, ways)))

    @property
    def weights(self) -> float:
        """Bytes of all weights, once."""
        return sum(part.bytes for part in self.parts)

    @property
    def cache(self) -> float:
        """Bytes of KV cache a token, over all layers."""
        return sum(kind.bytes_per_token for kind in self.kinds)

    @property
    def state(self) -> float:
        """Bytes beside the KV cache that one sequence keeps, however long it is."""
        return sum(kind.bytes_per_sequence for kind in self.kinds)

    def table(self) -> dict[str, Any]:
        """The same as plain keys and values, in bytes and tokens."""
        decoder, precision = self.model.decoder, self.settings.precision
        return {
            "model": self.model.name, "layers": self.model.layers, "max_model_len": self.settings.max_model_len,
            "longest_context": self.model.max_length,
            "parameters": self.model.parameters(), "active_parameters": self.model.active_parameters(),
            "experts": decoder.sizes.get("E", 0), "experts_per_token": decoder.top_k,
            "tied_embeddings": decoder.tied, "parts": [asdict(part) for part in self.parts],
            "quantization": self.settings.quantization, "weight_format": str(precision.weights),
            "activation_format": str(precision.activations), "kv_cache_format": str(precision.cache),
            "parts_in_bf16": list(precision.kept), "weight_bytes": self.weights,
            "kv_cache_bytes_per_token": self.cache, "state_bytes_per_sequence": self.state,
            "attention": [asdict(kind) for kind in self.kinds],
            "fits": [{**asdict(fit), "fits": fit.fits} for fit in self.fits],
        }

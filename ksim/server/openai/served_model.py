"""What is served: the model by its names, its LoRA adapters, and what requests may ask of it."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from attrs import frozen

from ksim import __version__
from ksim.foundation.errors import KsimError
from ksim.scenario.model_names import named
from ksim.scenario.vision import vision_of
from ksim.server.errors import invalid, not_found
from ksim.simulation.fleet import Fleet

__all__ = ["Served"]


@frozen
class Served:
    """A fleet as clients know it.

    It answers to its `names`, with the first of them, and to its `adapters`.  A request may ask for `max_logprobs`
    likeliest tokens at a place, or for any number if that is -1.  Fleets of several pools have the smallest limits.
    """

    names: Sequence[str]
    adapters: Sequence[str]
    root: str
    max_model_len: int
    vocabulary: int
    max_logprobs: int
    takes_images: bool
    release: str
    fingerprint: str
    created: int = 0

    @classmethod
    def of(cls, fleet: Fleet, names: Iterable[str] = (), created: int = 0) -> "Served":
        """What *fleet* serves, under its own name where it is given no *names*."""
        scenario, serves = fleet.scenario, [deployment.serve for deployment in fleet.deployments]
        first = fleet.deployments[0]
        adapters = dict.fromkeys(name for serve in serves for module in serve.lora_modules for name in module.names)
        digest = blake2b(scenario.to_toml().encode(), digest_size=4).hexdigest()
        return cls(
            names=tuple(names) or (first.model.name,), adapters=tuple(adapters), root=scenario.model,
            max_model_len=min(serve.max_model_len or 1 for serve in serves),
            vocabulary=int(first.model.decoder.sizes["V"]), max_logprobs=min(serve.max_logprobs for serve in serves),
            takes_images=vision_of(first.model, first.serve) is not None, release=first.version.name,
            fingerprint=f"ksim-{__version__}-{digest}", created=created)

    @property
    def version(self) -> str:
        """The version of the engine release that is simulated, and ksim's."""
        return f"{self.release.rpartition(' ')[2]}+ksim.{__version__}"

    def model(self, asked: str | None) -> tuple[str, str]:
        """The name that is answered to one who has *asked* for a model, and the adapter that it is, or "".

        Raises ApiError for a model that is not served.
        """
        if not asked or asked in self.names:
            return self.names[0], ""
        if asked in self.adapters:
            return asked, asked
        if self.root == self.names[0] and _catalogue_name(asked) == self.root:
            return self.root, ""
        raise not_found(asked, ", ".join(self.names))

    def check_images(self) -> None:
        """Raise ApiError where the model takes no images."""
        if not self.takes_images:
            raise invalid("At most 0 image(s) may be provided in one prompt.", "image")

    @property
    def cards(self) -> dict[str, Any]:
        """The models, as `/v1/models` lists them."""
        models = [self._card(name, self.root, None) for name in self.names]
        return {"object": "list", "data": models + [self._card(name, name, self.names[0]) for name in self.adapters]}

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        allowed = {key: key in ("sampling", "logprobs", "view")
                   for key in ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")}
        permission = {
            "id": f"modelperm-{blake2b(name.encode(), digest_size=8).hexdigest()}", "object": "model_permission",
            "created": self.created, **{f"allow_{key}": value for key, value in allowed.items()}, "organization": "*",
            "group": None, "is_blocking": False}
        return {"id": name, "object": "model", "created": self.created, "owned_by": "vllm", "root": root,
                "parent": parent, "max_model_len": None if parent else self.max_model_len, "permission": [permission]}


@lru_cache(256)
def _catalogue_name(text: str) -> str:
    """The catalogue's name of a model of Hugging Face, as clients of vLLM call it; empty for others."""
    try:
        return named(text, "").name if text.count("/") == 1 and len(text) < 200 else ""
    except KsimError:
        return ""

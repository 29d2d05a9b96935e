"""InternVL 2 to 3.5: an InternViT before a decoder of another family, which the config names in its `llm_config`."""

from attrs import evolve

from ksim.compute.model import Config, Decoder
from ksim.compute.vision.tiled import intern_vit
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

__all__ = ["internvl_chat"]


def internvl_chat(config: Config) -> Decoder:
    text = config.part("llm_config")
    family, known = text.get("model_type", ""), catalog.names("compute.architectures")
    if family not in known or family == "internvl_chat":
        raise ConfigError(f"{text.name}: model_type", f"{family!r} is no family that ksim knows ({', '.join(known)})")
    decoder: Decoder = catalog.find("compute.architectures", family)(text)
    return evolve(decoder, encoder=intern_vit(config, decoder.sizes["m"]))

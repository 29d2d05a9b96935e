"""InternVL 2 to 3.5: an InternViT before a decoder of another family, which the config names in its `llm_config`."""

from attrs import evolve

from ksim.compute.architectures import ALIASES, families
from ksim.compute.blocks import only
from ksim.compute.model import Config, Decoder
from ksim.compute.vision.towers import intern_vit
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, did_you_mean

__all__ = ["internvl_chat"]

#: Keys of the whole that repeat what its parts say, or are about training and prompts.
OUTSIDE = ("force_image_size", "hidden_size", "image_fold", "pad2square", "ps_version", "template", "system_message",
           "tie_word_embeddings", "vocab_size", "output_attentions")


def internvl_chat(config: Config) -> Decoder:
    text = config.joined("llm_config", ())
    only(config, use_backbone_lora=0, use_llm_lora=0, select_layer=-1)
    for key in OUTSIDE:
        config.value(key)
    family, known = text.get("model_type", ""), families()
    if family not in known or family == "internvl_chat":
        raise ConfigError(f"{text.name}: llm_config: model_type", f"{family!r} is no family that ksim knows"
                                                                  f"{did_you_mean(family, known)}; ksim knows"
                                                                  f" {', '.join(known)}")
    decoder: Decoder = catalog.find("compute.architectures", ALIASES.get(family, family))(text)
    return evolve(decoder, encoder=intern_vit(config, decoder.sizes["m"]))

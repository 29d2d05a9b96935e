"""EXAONE 3 and 3.5: a Llama that calls its sizes otherwise."""

from ksim.compute.architectures.llama import llama
from ksim.compute.model import Config, Decoder

__all__ = ["exaone"]


def exaone(config: Config) -> Decoder:
    return llama(config.under({"num_layers": "num_hidden_layers", "activation_function": "hidden_act"}))

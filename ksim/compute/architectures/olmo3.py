"""OLMo 3: an OLMo 2 whose `layer_types` give three of four layers a sliding window."""

from ksim.compute.architectures.olmo2 import olmo2 as olmo3

__all__ = ["olmo3"]

"""Ministral: a Mistral whose `layer_types` say which layers have a sliding window."""

from ksim.compute.architectures.mistral import mistral as ministral

__all__ = ["ministral"]

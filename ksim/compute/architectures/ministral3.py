"""Ministral 3: a Mistral; the scale of its queries by position is part of the rotary kernel."""

from ksim.compute.architectures.mistral import mistral as ministral3

__all__ = ["ministral3"]

"""Kimi K2: a DeepSeek-V3 of more experts and fewer heads."""

from ksim.compute.architectures.deepseek_v3 import deepseek_v3 as kimi_k2

__all__ = ["kimi_k2"]

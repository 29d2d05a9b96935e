"""DeepSeek-V2: a DeepSeek-V3 whose router has no correction; Lite projects queries in one step."""

from ksim.compute.architectures.deepseek_v3 import deepseek_v3 as deepseek_v2

__all__ = ["deepseek_v2"]

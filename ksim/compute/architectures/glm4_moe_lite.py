"""GLM-4.7-Flash: a small DeepSeek-V3."""

from ksim.compute.architectures.deepseek_v3 import deepseek_v3 as glm4_moe_lite

__all__ = ["glm4_moe_lite"]

"""DeepSeek-V3.2: latent attention over the keys that an indexer chooses, as in GLM-5."""

from ksim.compute.architectures.glm_moe_dsa import glm_moe_dsa as deepseek_v32

__all__ = ["deepseek_v32"]

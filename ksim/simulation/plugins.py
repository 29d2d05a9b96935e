"""Plug-ins by name, with the options that a scenario gives them."""

from ksim.foundation.config import Choice
from ksim.foundation.plugins import plugin
from ksim.oracles.efficiency.profile import shipped

__all__ = ["oracle_choice", "plugin"]


def oracle_choice(choice: Choice | None, gpu: str) -> Choice:
    """*choice*, or by default the best latency oracle for *gpu*: measured where a profile ships, else learned."""
    return choice or Choice("measured" if shipped(gpu).exists() else "learned")

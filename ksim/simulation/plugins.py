"""The latency oracle of a GPU, where a scenario names none."""

from ksim.foundation.config import Choice
from ksim.oracles.efficiency.profile import shipped

__all__ = ["oracle_choice"]


def oracle_choice(choice: Choice | None, gpu: str) -> Choice:
    """*choice*, or by default the best latency oracle for *gpu*: measured where a profile ships, else learned."""
    return choice or Choice("measured" if shipped(gpu).exists() else "learned")

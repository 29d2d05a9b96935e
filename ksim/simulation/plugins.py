"""Plug-ins by name, with the options that a scenario gives them."""

from typing import Any

from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.plugins import plugin
from ksim.oracles.efficiency.profile import shipped
from ksim.scheduling.policies import POLICY_MEMBERS

__all__ = ["oracle_choice", "plugin", "policy_of"]


def policy_of(choice: Choice) -> Any:
    """Build a scheduling policy; raises ConfigError for a user's class that has no member of a policy."""
    policy = plugin("scheduling.policies", choice)
    if ":" in choice.name and not any(hasattr(policy, member) for member in POLICY_MEMBERS):
        raise ConfigError(choice.name, f"has none of {', '.join(POLICY_MEMBERS)}, so it is no policy")
    return policy


def oracle_choice(choice: Choice | None, gpu: str) -> Choice:
    """*choice*, or by default the best latency oracle for *gpu*: measured where a profile ships, else learned."""
    return choice or Choice("measured" if shipped(gpu).exists() else "learned")

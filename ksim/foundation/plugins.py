"""Plug-ins by name, with the options that a scenario gives them."""

from typing import Any

from ksim.foundation import catalog
from ksim.foundation.config import Choice, structure
from ksim.foundation.errors import ConfigError

__all__ = ["plugin"]


def plugin(folder: str, choice: Choice) -> Any:
    """Build the plug-in that *choice* names; its options become the arguments of its class.

    Raises UnknownName, and ConfigError for options that it does not take.
    """
    made = catalog.find(folder, choice.name)
    if isinstance(made, type):
        if hasattr(made, "__attrs_attrs__"):
            return structure(made, choice.options, choice.name)
        return _plain_instance(made, choice)
    if choice.options:
        raise ConfigError(choice.name, f"takes no options, and was given {', '.join(choice.options)}")
    return made


def _plain_instance(made: type, choice: Choice) -> Any:
    """An instance of a plug-in class that attrs did not make."""
    try:
        return made(**choice.options)
    except TypeError as error:
        raise ConfigError(choice.name, str(error)) from None

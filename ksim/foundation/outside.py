"""Plug-ins from outside ksim: which modules may be imported for a name in a file, and what their objects must have."""

import os
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ksim.foundation.errors import ConfigError

__all__ = ["METHODS", "TRUST", "outside"]

#: The environment variable that lets any module be imported, as `--trust` does; processes of a study inherit it.
TRUST = "KSIM_TRUST"
#: The folders in which installers put packages, by their names.
_INSTALLED = {"site-packages", "dist-packages"}
#: A plug-in has one of these methods, by the folder of its kind; where there are none, it is a function.
METHODS: Mapping[str, tuple[str, ...]] = {
    "scheduling.policies": ("order", "victim", "propose", "queue"), "scheduling.admissions": ("admits",),
    "scheduling.acceptances": ("rates",), "kv_cache.evictions": (), "kv_offload.evictions": ("evict",),
    "kv_offload.connectors": ("connector",), "kv_transfer.connectors": ("start", "share", "lease"),
    "cluster.routers": ("choose",), "cluster.pair_routers": ("choose",), "cluster.flow_controls": ("refusal", "pick"),
    "cluster.llm_d.parts": ("score", "keep", "pick", "look", "splits"), "engine.governors": ("setting",),
    "oracles": ("estimates", "seconds", "estimate"), "network.collectives": ("rounds",), "workload.traces": ("rows",),
    "workload.datasets": ("rows",), "compute.architectures": (),
}
#: Kinds of which a plug-in may be a function, too.
_FUNCTIONS = ("scheduling.admissions",)


def outside(folder: str, module_name: str, attribute: str) -> Any:
    """The object *attribute* of a module that is not ksim's, as a plug-in of *folder*; it is not called.

    Raises ConfigError for a module that is installed, unless that is trusted, for an import that fails, and for an
    object that has nothing of such a plug-in.
    """
    where = f"{module_name}:{attribute}"
    if _is_installed(module_name.partition(".")[0]) and not os.environ.get(TRUST):
        raise ConfigError(where, f"is not imported: module {module_name} is not of your own folders; if you know what"
                                 f" it does, add --trust (in Python: os.environ['{TRUST}'] = '1')")
    try:
        found = getattr(import_module(module_name), attribute)
    except AttributeError:
        raise ConfigError(where, f"module {module_name} has no {attribute}") from None
    except Exception as error:  # whatever a user's module raises while it is imported is the user's to see
        raise ConfigError(where, f"cannot be imported: {type(error).__name__}: {error}") from error
    _check(folder, found, where)
    return found


def _check(folder: str, found: Any, where: str) -> None:
    """Raise ConfigError for what cannot be a plug-in of *folder*, before anything calls it."""
    if folder not in METHODS:
        raise ConfigError(where, "is no name here: ksim takes its own alone")
    methods = METHODS[folder]
    if (not methods or folder in _FUNCTIONS) and _is_function(found):
        return
    if not methods:
        raise ConfigError(where, "is no function, which a plug-in of this kind is")
    fields = {field.name for field in getattr(found, "__attrs_attrs__", ())}
    if not any(hasattr(found, method) or method in fields for method in methods):
        kind = _kind(folder)
        raise ConfigError(where, f"has {'none of ' if len(methods) > 1 else 'no '}{', '.join(methods)}, so it is no"
                                 f" {kind}")


def _is_function(found: Any) -> bool:
    """Whether *found* can be called; of a class, whether its objects can."""
    return any("__call__" in vars(cls) for cls in found.__mro__) if isinstance(found, type) else callable(found)


def _kind(folder: str) -> str:
    word = folder.rpartition(".")[2].replace("_", " ")
    return {"policies": "policy"}.get(word, word.removesuffix("s")) if "llm_d" not in folder else "part of llm-d"


def _is_installed(name: str) -> bool:
    """Whether the module *name*, which has no dots, is Python's or an installed package, and not of a user's folder.

    Nothing is imported.  What the program has made itself, such as ``__main__``, is its own; so is what there is not.
    """
    if name in ("ksim", "__main__"):
        return False
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return True
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module that was made by hand
        return False
    return spec is not None and any(map(_of_an_installer, _places(spec)))


def _places(spec: ModuleSpec) -> list[Path]:
    return [Path(place) for place in (spec.submodule_search_locations or (spec.origin,)) if place]


def _of_an_installer(place: Path) -> bool:
    """Whether *place* is of the standard library, or where packages are installed."""
    return not _INSTALLED.isdisjoint(place.parts) or any(folder in place.parents for folder in _standard())


@cache
def _standard() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))

"""Names to plug-ins and data files: the folder is the registry.

A plug-in is a public object of a module in a plug-in folder, which `__all__` names.  It is called what its file is
called; where a file has several, each is called what the object is called, in snake case.  `package.module:object`
names one that lives outside ksim, which `outside` imports and checks.  GPUs are found by the names that drivers, clouds
and people give them, too.
"""

import ast
import json
import os
import re
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from pickle import dumps, loads
from typing import Any, TypeVar

from ksim.foundation.config import Choice, structure
from ksim.foundation.errors import ConfigError, DataError, UnknownName, near
from ksim.foundation.files import LONGEST, FileVersion, broken_line, is_there, not_utf8, plug_ins, regular_file, version
from ksim.foundation.units import quantity

__all__ = ["gpu_name", "maker", "METHODS", "TRUST", "outside", "plugin", "DATA", "names", "find", "entries", "load",
           "spelled"]


#: Words that say nothing that the catalogue's names do not: makers, brands, sockets and kinds of memory.
_IDLE = frozenset({"nvidia", "tesla", "geforce", "rtx", "gpu", "tensor", "core", "graphics", "card", "sxm", "sxm4",
                   "sxm5", "sxm6", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "ampere", "ada", "hopper", "blackwell",
                   "turing", "server", "edition", "superchip", "nvl72"})
#: Names that these words do not make out: GH200's driver counts the memory of the CPU.
_OTHERS = {frozenset({"gh200", "480gb"}): "gh200", frozenset({"dgx", "spark"}): "gb10", frozenset({"spark"}): "gb10"}
#: The least and the most bytes that CUDA offers for a GB that is sold: 10^9 or 2^30 less what ECC and the driver take.
_LEAST, _MOST = 0.97e9, 2.0**30
_MAKERS = (
    (r"(amd|instinct|radeon).*|mi\d{2,3}[a-z]?|rx \d{4}.*", "AMD"),
    (r"(intel|gaudi|hpu|arc|habana).*|(data center gpu )?max (1100|1550)|[ab]\d0 pro|b60|b580", "Intel"),
    (r"(google|tpu|trillium|ironwood).*|v\d[ep]", "Google"),
    (r"(aws|neuron|trainium|inferentia).*|trn\d.*|inf\d.*", "AWS"),
    (r"(ascend|huawei|npu).*|910[a-d]\d?", "Huawei"),
    (r"(apple|m[1-9]) ?(pro|max|ultra)?", "Apple"), (r"groq.*|lpu", "Groq"), (r"cerebras.*|wse.*", "Cerebras"))


def gpu_name(name: str, known: Iterable[str], memory: Callable[[str], float]) -> str | None:
    """The one of *known* catalogue names that *name* means, such as "NVIDIA H200", "A100-80GB" or "RTX4090"; or None.

    All words of *name* must be in the catalogue's, but for those that say nothing more, and for the GB sold, which must
    go with the bytes of `memory` that CUDA offers of that GPU.
    """
    words = _words(name)
    if found := _OTHERS.get(words) or next((each for each in known if words and _words(each) == words), None):
        return found
    sizes = [word for word in words if re.fullmatch(r"\d+gb", word)]
    if len(sizes) != 1 or len(words) == 1:
        return None
    sold, rest = int(sizes[0][:-2]), words - {sizes[0]}
    alike = (each for each in known if _words(each) == rest)
    return next((each for each in alike if _LEAST * sold <= memory(each) <= _MOST * sold), None)


def maker(name: str) -> str:
    """Who makes the accelerator called *name*, if not NVIDIA; "" if nobody that is known."""
    text = " ".join(re.split(r"[\s_-]+", name.lower().strip()))
    return next((known for pattern, known in _MAKERS if re.fullmatch(pattern, text)), "")


def _words(name: str) -> frozenset[str]:
    text = re.sub(r"rtx(?=\d)|(?<=\d)(?=sxm|nvl|pcie)", lambda found: f"{found[0]} ", name.lower())
    words = (re.sub(r"^(\d+)gb?$", r"\1gb", word) for word in re.split(r"[^a-z0-9]+", text))
    return frozenset(word for word in words if word) - _IDLE


#: The environment variable that lets any module be imported, as `--trust` does; processes of a study inherit it.
TRUST = "KSIM_TRUST"
#: The folders in which installers put packages, by their names.
_INSTALLED = {"site-packages", "dist-packages"}
#: A plug-in has one of these methods, by the folder of its kind; where there are none, it is a function.
METHODS: Mapping[str, tuple[str, ...]] = {
    "scheduling.policies": ("order", "victim", "propose", "queue"), "scheduling.admissions": ("admits",),
    "scheduling.acceptances": ("rates",), "kv.cache.evictions": (), "kv.offload.evictions": ("evict",),
    "kv.offload.connectors": ("connector",), "kv.transfer.connectors": ("start", "share", "lease"),
    "cluster.routers": ("choose",), "cluster.pair_routers": ("choose",), "cluster.flow_controls": ("refusal", "pick"),
    "cluster.llm_d.parts": ("score", "keep", "pick", "look", "splits"), "engine.governors": ("setting",),
    "oracles": ("estimates", "seconds", "estimate"), "network.collectives": ("rounds",), "workload.traces": ("rows",),
    "workload.datasets": ("rows",), "compute.architectures": (), "ranks.processes": (),
    "autoscaling": ("decide",),
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


T = TypeVar("T")

DATA = Path(__file__).parent.parent / "data"
_PARSERS = {".toml": tomllib.loads, ".json": json.loads}


def names(folder: str) -> list[str]:
    """List the plug-ins in *folder*, such as ``"cluster.routers"``."""
    return [*_plug_ins(folder)]


@cache
def _plug_ins(folder: str) -> dict[str, tuple[Path, str]]:
    found: dict[str, tuple[Path, str]] = {}
    for path in import_module(f"ksim.{folder}").__path__:
        found |= plug_ins(Path(path))
    return dict(sorted(found.items()))


def summary(folder: str, name: str) -> str:
    """The first line that the plug-in called *name* in *folder* says of itself: its file's, or its own among several.

    Raises UnknownName for a name that the folder lacks.
    """
    path, attribute = _plug_in(folder, name)
    tree: Any = ast.parse(path.read_text(encoding="utf-8"))
    if path.stem != name:
        tree = next(node for node in tree.body if getattr(node, "name", "") == attribute)
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def _plug_in(folder: str, name: str) -> tuple[Path, str]:
    if name not in _plug_ins(folder):
        raise UnknownName(_singular(folder), name, names(folder))
    return _plug_ins(folder)[name]


def choices(folder: str) -> list[str]:
    """List what a value may name: the data files of *folder*, such as ``"gpus"``, or else its plug-ins."""
    return entries(folder) if is_data(folder) else names(folder)


def is_data(folder: str) -> bool:
    """Whether *folder* holds data files, such as ``"gpus"``, and not plug-ins."""
    return (DATA / folder).is_dir()


def find(folder: str, name: str) -> Any:
    """Return the plug-in called *name* in *folder*, or the object that ``package.module:object`` names.

    Raises UnknownName for a name that the folder lacks, and what `outside` raises.
    """
    module_name, _, attribute = name.partition(":")
    if attribute:
        return outside(folder, module_name, attribute)
    path, public = _plug_in(folder, name)
    return getattr(import_module(f"ksim.{folder}.{path.stem}"), public)


def _singular(folder: str) -> str:
    word = folder.rpartition(".")[2]
    return {"policies": "policy"}.get(word, word.removesuffix("s"))


def entries(folder: str) -> list[str]:
    """List the data files in ``ksim/data/<folder>``, without their endings."""
    return [*_entries(folder)]


@cache
def _entries(folder: str) -> list[str]:
    """They are looked for a dozen times in each scenario."""
    return sorted(path.stem for path in (DATA / folder).iterdir() if path.suffix in _PARSERS)


def is_file(name: str) -> bool:
    """Whether *name* is the path of a data file, and not a catalogue name."""
    return Path(name).suffix.lower() in _PARSERS


def load(folder: str, name: str) -> dict[str, Any]:
    """Return the content of data file *name*: a path as for `path_of`, or a catalogue name.

    Raises UnknownName for a name that the catalogue lacks, DataError for a file that cannot be read.
    """
    return read(path_of(folder, name))


def value(cls: type[T], folder: str, name: str) -> T:
    """Return data file *name* as a *cls*; raises ConfigError for content that is not one, and what `load` raises."""
    return structure(cls, load(folder, name), f"{_singular(folder)} {name}")


def spelled(folder: str, name: str) -> str:
    """*name* as the catalogue spells it, whatever its case, and for a GPU what it is called elsewhere ("NVIDIA H200").

    A path, and a name that the catalogue lacks, stay as they are.
    """
    known = entries(folder)
    if name in known or is_file(name):
        return name
    if name.lower() in known:
        return name.lower()
    return (folder == "gpus" and gpu_name(name, known, _memory)) or name


def _memory(gpu: str) -> float:
    return quantity(load("gpus", gpu)["memory"])


def path_of(folder: str, name: str) -> Path:
    """The data file that *name* means: a catalogue name, a path ending in .toml or .json, or a model's folder.

    Raises UnknownName, DataError for a folder that is not there, and ConfigError for a GPU of another maker.
    """
    path = Path(name)
    if is_file(name):
        return path
    if (name := spelled(folder, name)) in entries(folder):
        return next(found for suffix in _PARSERS if (found := DATA / folder / f"{name}{suffix}").exists())
    if folder in ("models", "drafters") and name and is_there(path) and path.is_dir():
        return path / "config.json"
    if folder == "gpus" and (made_by := maker(name)):
        raise ConfigError("gpu", f"{name!r} is hardware of {made_by}, and none of it ships with ksim, which knows"
                                 f" NVIDIA's kernels alone (`ksim list gpus`); to price it as if it ran an NVIDIA"
                                 f" architecture's, describe it from its data sheet:"
                                 f" ksim gpu new {name.lower().replace(' ', '-')}.toml")
    if Path(name).name != name:
        kinds = "a .json file or a folder with a config.json" if folder == "models" else "a .toml or .json file"
        close = near(Path(name).name, entries(folder))
        raise DataError(name, f"is no {_singular(folder)}: there is no such path; name {kinds}, or one of"
                              f" `ksim list {folder}`{f'; did you mean {close!r}?' if close else ''}")
    raise UnknownName(_singular(folder), name, entries(folder))


@lru_cache(maxsize=256)
def _parsed(path: Path, _: FileVersion) -> bytes:
    """What is in a file, pickled: copies of it, which callers may change, take less time than to parse it again."""
    return dumps(_PARSERS[path.suffix.lower()](path.read_text(encoding="utf-8-sig")))


def read(path: Path) -> dict[str, Any]:
    """Parse a TOML or JSON file by its ending; raise DataError where it is missing, malformed or neither."""
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None and not (is_there(path) and path.is_dir()):
        raise DataError(str(path), f"expected a file that ends in {' or '.join(_PARSERS)}")
    try:
        table = loads(_parsed(regular_file(path, LONGEST), version(path)))
    except OSError as error:
        raise DataError(str(path), error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise DataError(str(path), not_utf8(error.object)) from None
    except (ValueError, RecursionError) as error:
        where = broken_line(path.read_text(encoding="utf-8-sig"), str(error))
        raise DataError(str(path), f"is not valid {path.suffix[1:].upper()}: {error}{where}") from None
    if not isinstance(table, Mapping):
        raise DataError(str(path), "holds no table of keys and values")
    return dict(table)


def plugin(folder: str, choice: Choice) -> Any:
    """Build the plug-in that *choice* names; its options become the arguments of its class.

    Raises UnknownName, and ConfigError for options that it does not take.
    """
    made = find(folder, choice.name)
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

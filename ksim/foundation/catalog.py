"""Names to plug-ins and data files: the folder is the registry.

A plug-in is a public object of a module in a plug-in folder: ``__all__`` names it.
It is called what its file is called; where a file has several, each is called what
the object is called, in snake case.  ``package.module:object`` names one that lives
outside ksim.
"""

import ast
import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from pickle import dumps, loads
from pkgutil import iter_modules
from typing import Any, TypeVar

from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, DataError, UnknownName, near
from ksim.foundation.files import LONGEST, FileVersion, is_there, regular_file, version
from ksim.foundation.gpu_names import gpu_name, maker
from ksim.foundation.outside import outside
from ksim.foundation.text_hints import broken_line, not_utf8
from ksim.foundation.units import quantity

T = TypeVar("T")

DATA = Path(__file__).parent.parent / "data"
_PARSERS = {".toml": tomllib.loads, ".json": json.loads}


def names(folder: str) -> list[str]:
    """List the plug-ins in *folder*, such as ``"cluster.routers"``."""
    return [*_plug_ins(folder)]


@cache
def _plug_ins(folder: str) -> dict[str, tuple[Path, str]]:
    """The file and the object of each plug-in in *folder*, by its name; no module of the folder is imported."""
    paths = [Path(path, f"{module.name}.py") for path in import_module(f"ksim.{folder}").__path__
             for module in iter_modules([path]) if not module.ispkg]
    objects = [(path, _public(path)) for path in paths]
    return dict(sorted((path.stem if len(public) == 1 else _snake_case(name), (path, name))
                       for path, public in objects for name in public))


def _public(path: Path) -> list[str]:
    listed = re.search(r"^__all__ = (\[[^]]*\])", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [*ast.literal_eval(listed[1])] if listed else []


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


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

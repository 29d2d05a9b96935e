"""llm-d's EndpointPickerConfig, as its YAML files have it.

Parameters as llm-d's YAML spells them, such as maxTTFTPenaltyMs, to attrs classes and their fields.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from attrs import Attribute, field, fields, frozen
from attrs.validators import min_len

from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError, DataError, UnknownKey
from ksim.foundation.files import LONGEST, regular_file

__all__ = ["key_of", "made", "EndpointPickerConfig", "PluginRef", "PluginSpec", "SchedulingProfile", "path_or_table"]


T = TypeVar("T")


def key_of(field: "Attribute[Any]") -> str:
    """The key of *field* in YAML: in camel case, unless its metadata have a `key`."""
    return str(field.metadata.get("key") or re.sub(r"_(\w)", lambda match: match[1].upper(), field.name))


def made(cls: type[T], table: Any, where: str, **given: Any) -> T:
    """Build *cls* from *table*, whose keys are in camel case; what is *given* is none of its keys.

    Raises ConfigError that names *where* and the key.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(where, f"expected a table of keys and values, not {table!r}")
    names = {key_of(field): field.name for field in fields(cls) if field.init and field.name not in given}  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise _unknown(where, str(key), [*names])
    try:
        return structure(cls, {names[key]: value for key, value in table.items()} | given)
    except ConfigError as error:
        path, problem = error.args
        for key, name in sorted(names.items(), key=lambda item: -len(item[1])):
            path, problem = (re.sub(rf"\b{name}\b", key, text) for text in (path, problem))
        raise type(error)(where if path == cls.__name__ else f"{where}.{path}", problem) from None


def _unknown(where: str, key: str, known: list[str]) -> ConfigError:
    close = get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UnknownKey(f"{where}.{key}", f"unknown key; {hint}" + (f"expected {', '.join(known)}" if known else
                                                                  "it takes none"))


_KIND = "EndpointPickerConfig"
_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
#: Gates that change nothing that is simulated.
_GATES = ("dataLayer", "prepareDataPlugins", "enableLegacyMetrics", "experimentalDatalayer")


def _table(value: Any) -> Any:
    return {} if value is None else value


def path_or_table(value: Any) -> str | Mapping[str, Any]:
    """*value*, as the option `config` takes it; raises ValueError for what is neither."""
    if not isinstance(value, str | Mapping):
        raise ValueError(f"config: expected the path of a YAML file or a table, not {value!r}")
    return value


@frozen
class PluginSpec:
    """A plug-in that is made: its `type`, the `name` that it is referred to by, and its `parameters`."""

    type: str
    name: str = ""
    parameters: Any = field(default=None, converter=_table)

    @property
    def called(self) -> str:
        return self.name or self.type


@frozen
class PluginRef:
    """A plug-in of a profile; `weight` is that of a scorer."""

    plugin_ref: str
    weight: float = 1.0


@frozen
class SchedulingProfile:
    """A profile by which engines are chosen: the plug-ins that filter, score and pick."""

    name: str
    plugins: Sequence[PluginRef] = ()


@frozen
class EndpointPickerConfig:
    """The plug-ins to make, and the profiles that refer to them.  `where` is the file of the config, if any."""

    plugins: Sequence[PluginSpec] = ()
    profiles: Sequence[SchedulingProfile] = ()
    where: str = ""

    def place(self, spec: PluginSpec) -> str:
        """The place of *spec* in the config, for errors."""
        return f"{self.where}: plugins[{self.plugins.index(spec)}]" if self.where else spec.called

    def place_of_profile(self, name: str) -> str:
        return f"{self.where}: schedulingProfiles {name!r}" if self.where else "scorers"

    @classmethod
    def read(cls, path: Path) -> "EndpointPickerConfig":
        """The configuration in the YAML file at *path*.

        Raises DataError, which names the line where the YAML is malformed, and ConfigError, which names the key.
        """
        return cls.of(_document(path), str(path))

    @classmethod
    def named(cls, config: str | Mapping[str, Any]) -> "EndpointPickerConfig":
        """The configuration that the option `config` of a router stands for: a file's path, or the table itself."""
        return cls.read(Path(config)) if isinstance(config, str) else cls.of(config, "config")

    @classmethod
    def of(cls, document: Any, where: str) -> "EndpointPickerConfig":
        """The configuration that *document* stands for, the content of a YAML file."""
        if not isinstance(document, Mapping):
            raise ConfigError(where, "holds no table of keys and values")
        _check_kind(document, where)
        whole = made(_Document, document, where)
        _check_gates(whole.feature_gates, where)
        plugins = [made(PluginSpec, table, f"{where}: plugins[{index}]") for index, table in enumerate(whole.plugins)]
        profiles = [_profile(table, f"{where}: schedulingProfiles[{index}]")
                    for index, table in enumerate(whole.scheduling_profiles)]
        _check_names([plugin.called for plugin in plugins], f"{where}: plugins")
        _check_names([profile.name for profile in profiles], f"{where}: schedulingProfiles")
        whole.check_references({plugin.called for plugin in plugins}, where)
        return cls(plugins, profiles, where)


def _or_empty(value: Any) -> Any:
    return () if value is None else value


def _check_list(document: Any, attribute: "Attribute[Any]", value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key_of(attribute)}: expected a list, not {value!r}")


def _list() -> Any:
    return field(default=(), converter=_or_empty, validator=_check_list)


@frozen
class _Document:
    """The keys at the top.  How signals come is the scenario's `signals`, so a `data_layer` only has to be right."""

    api_version: str
    kind: str
    metadata: Any = None
    feature_gates: Any = _list()
    plugins: Any = _list()
    scheduling_profiles: Any = _list()
    saturation_detector: Any = None
    data_layer: Any = None
    flow_control: Any = None
    parser: Any = None
    request_handler: Any = None
    discovery: Any = None

    def check_references(self, names: set[str], where: str) -> None:
        """Raise ConfigError for a plug-in that is referred to and not made."""
        flow = self.flow_control or {}
        detectors = [self.saturation_detector, flow.get("saturationDetector") if isinstance(flow, Mapping) else None]
        sources = (self.data_layer or {}).get("sources") if isinstance(self.data_layer, Mapping) else None
        extractors = [extractor for source in sources or () for extractor in source.get("extractors") or ()]
        for table in (*(detector for detector in detectors if detector), *(sources or ()), *extractors):
            name = table.get("pluginRef") if isinstance(table, Mapping) else None
            if name not in names and name not in (None, "utilization-detector"):
                raise ConfigError(where, f"pluginRef {name!r} names none of plugins: {', '.join(sorted(names))}")


@frozen
class _Profile:
    """A profile as it is written."""

    name: str = field(validator=min_len(1))
    plugins: Any = _list()


def _profile(table: Any, where: str) -> SchedulingProfile:
    written = made(_Profile, table, where)
    return SchedulingProfile(written.name, [made(PluginRef, ref, f"{where}.plugins[{index}]")
                                            for index, ref in enumerate(written.plugins)])


def _check_kind(document: Mapping[str, Any], where: str) -> None:
    if document.get("kind") != _KIND:
        raise ConfigError(f"{where}: kind", f"expected {_KIND}, not {document.get('kind')!r}")
    if document.get("apiVersion") not in _VERSIONS:
        raise ConfigError(f"{where}: apiVersion", f"expected {' or '.join(_VERSIONS)}, not"
                                                  f" {document.get('apiVersion')!r}")


def _check_gates(gates: Sequence[Any], where: str) -> None:
    for gate in gates:
        name, _, value = str(gate).partition("=")
        if name == "flowControl" and value.strip().lower() != "false":
            raise ConfigError(f"{where}: featureGates", "flowControl is not simulated here; leave it out, and set the"
                                                        " scenario's flow_control")
        if name not in (*_GATES, "flowControl"):
            raise ConfigError(f"{where}: featureGates", f"there is no gate {name!r}; there are {', '.join(_GATES)}")


def _check_names(names: Sequence[str], where: str) -> None:
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ConfigError(where, f"{twice[0]!r} is there twice; give each a name of its own")


def _check_keys(node: Any, seen: set[int]) -> None:
    """Raise MarkedYAMLError for a key that is in a mapping twice; YAML lets the last one win."""
    if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, seen)
        return
    keys = set[str]()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in keys:
            raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark)
        keys.add(str(key.value))
        _check_keys(value, seen)


def _document(path: Path) -> Any:
    try:
        text = regular_file(path, LONGEST).read_text(encoding="utf-8")
        _check_keys(yaml.compose(text, yaml.SafeLoader), set())
        return yaml.safe_load(text)
    except UnicodeDecodeError:
        raise DataError(str(path), "is not text in UTF-8") from None
    except OSError as error:
        raise DataError(str(path), error.strerror or str(error)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DataError(f"{path}:{mark.line + 1}" if mark else str(path),
                        f"is not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(str(path), f"is not valid YAML: {error}") from None

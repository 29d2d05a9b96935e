"""Tables that flags take, such as `--kv-transfer-config`: their keys are ksim's settings, or change nothing."""

from collections.abc import Collection, Mapping
from typing import Any

from attrs import fields_dict

from ksim.deploy.flags.given import Given
from ksim.foundation.errors import ConfigError, did_you_mean


def table_of(given: Given) -> dict[str, Any]:
    """The table that a flag is given; raises ConfigError for another value."""
    if given.value in (None, "", "None"):
        return {}
    if not isinstance(given.value, Mapping):
        raise ConfigError(given.where, f"{given.flag.name}: expected a table in JSON, such as '{{\"key\": 1}}', not"
                                       f" {given.value!r}")
    return dict(given.value)


def known_keys(given: Given, table: Mapping[str, Any], cls: type, idle: Collection[str] = ()) -> dict[str, Any]:
    """The keys of *table* that *cls* has; raises ConfigError for those that are neither there nor *idle*."""
    known = [*fields_dict(cls), *idle]
    for key in table:
        if key not in known:
            raise ConfigError(given.where, f"{given.flag.name}: {key} is no key that ksim knows"
                                           f"{did_you_mean(key, known)}")
    return {key: value for key, value in table.items() if key in fields_dict(cls) and value is not None}

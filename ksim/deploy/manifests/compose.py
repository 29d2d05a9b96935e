"""Services of Docker Compose as containers of a manifest: an image, a command, variables."""

import shlex
from collections.abc import Iterator, Mapping

from ksim.deploy.manifests.made import listed, tabled, text, texts
from ksim.deploy.shell.variables import Variables
from ksim.deploy.shell.words import Piece
from ksim.deploy.texts.entries import Entry

__all__ = ["IDLE", "READ", "container_of", "replicas_of"]

#: Keys of a service that are read.
READ = ("image", "command", "entrypoint", "environment", "deploy", "scale", "gpus", "container_name")
_RUNS = "how the container runs changes no schedule"
#: Keys that change nothing here, and why.
IDLE: Mapping[str, str] = dict.fromkeys((
    "annotations", "attach", "blkio_config", "build", "cap_add", "cap_drop", "cgroup", "cgroup_parent", "configs",
    "cpu_count", "cpu_percent", "cpu_period", "cpu_quota", "cpu_rt_period", "cpu_rt_runtime", "cpu_shares", "cpus",
    "cpuset", "credential_spec", "depends_on", "develop", "device_cgroup_rules", "devices", "dns", "dns_opt",
    "dns_search", "domainname", "env_file", "expose", "extends", "external_links", "extra_hosts", "group_add",
    "healthcheck", "hostname", "init", "ipc", "isolation", "labels", "links", "logging", "mac_address", "mem_limit",
    "mem_reservation", "mem_swappiness", "memswap_limit", "models", "network_mode", "networks", "oom_kill_disable",
    "oom_score_adj", "pid", "pids_limit", "platform", "ports", "post_start", "pre_stop", "privileged", "profiles",
    "provider", "pull_policy", "read_only", "restart", "runtime", "secrets", "security_opt", "shm_size", "stdin_open",
    "stop_grace_period", "stop_signal", "storage_opt", "sysctls", "tmpfs", "tty", "ulimits", "use_api_socket", "user",
    "userns_mode", "uts", "volumes", "volumes_from", "working_dir"), _RUNS)


def container_of(service: Entry, known: Mapping[str, str]) -> Entry:
    """*service* as a container; variables in it are filled in from *known* ones."""
    variables = Variables(dict(known))
    parts: dict[str, Entry] = {}
    for key, into in (("entrypoint", "command"), ("command", "args")):
        if (value := service.get(key)) is not None:
            parts[into] = _words(value, variables)
    if (image := service.get("image")) is not None:
        parts["image"] = text(image, _filled(image, variables))
    parts["env"] = listed(service, [*_environment(service, variables)])
    return tabled(service, parts)


def _words(value: Entry, variables: Variables) -> Entry:
    """A command: a list of words, or one text that Compose divides as a shell does."""
    if value.is_list:
        return listed(value, [text(item, _filled(item, variables)) for item in value.items])
    try:
        words = shlex.split(_filled(value, variables))
    except ValueError as error:
        raise value.error(f"cannot be divided into words: {error}") from None
    return listed(value, texts(value, *words))


def _environment(service: Entry, variables: Variables) -> Iterator[Entry]:
    """The variables of a service: a table, or a list of NAME=VALUE; one without a value comes from outside."""
    given = service.get("environment")
    if given is None:
        return
    pairs = [(name, value) for name, value in given.table.items()] if given.is_table else [
        (item.text.partition("=")[0], text(item, item.text.partition("=")[2])) for item in given.items]
    for name, value in pairs:
        filled = "" if value.is_null else _filled(value, variables)
        yield tabled(value, {"name": text(value, name), "value": text(value, filled)})


def _filled(value: Entry, variables: Variables) -> str:
    """The text of *value* with `${NAME:-default}` filled in; `$$` is a dollar sign.

    A variable without a value stays: whoever reads a flag knows whether it needs one.
    """
    return "$".join(variables.filled([Piece(part, True, False)], None) for part in value.text.split("$$"))


def replicas_of(service: Entry) -> int:
    """How many containers run the service."""
    count = service.get("deploy", "replicas") or service.get("scale")
    return count.count if count is not None else 1

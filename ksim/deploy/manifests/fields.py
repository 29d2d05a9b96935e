"""The fields of a manifest's tables: those that are read, those without effect here, and unknown ones.

Entries made of others, as a chart makes pods of its values; what they are made of keeps its places.

Which GPU a node has, by its labels: NVIDIA's, those of clouds, and the names of machine types.

Services of Docker Compose as containers of a manifest: an image, a command, variables.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import yaml
from attrs import evolve

from ksim.deploy.commands import Note
from ksim.deploy.shell.variables import Piece, Variables
from ksim.deploy.texts import Entry
from ksim.foundation.errors import ConfigError, UnknownKey, nearest

__all__ = ["listed", "tabled", "text", "texts", "KEYS", "PRODUCTS", "gpu_of", "IDLE", "READ", "container_of",
           "replicas_of"]


_STARTS = "how a container is started and kept alive changes no schedule"
_NETWORK = "ports and names in the cluster's network change no schedule"
_STORAGE = "where files lie changes no schedule; ksim loads no weights"
_RIGHTS = "rights change no schedule"
_PLACE = "ksim places engines itself, on the fewest nodes"
_ROLLS = "engines are up from the start"

#: Fields of a container that change nothing here, and why.
CONTAINER: Mapping[str, str] = {
    **dict.fromkeys(("imagePullPolicy", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "stdin",
                     "stdinOnce", "tty", "terminationMessagePath", "terminationMessagePolicy", "workingDir",
                     "restartPolicy", "restartPolicyRules", "resizePolicy"), _STARTS),
    "ports": _NETWORK, "volumeDevices": _STORAGE, "securityContext": _RIGHTS,
}
#: The same of a pod's `spec`.
POD: Mapping[str, str] = {
    **dict.fromkeys(("activeDeadlineSeconds", "initContainers", "ephemeralContainers", "imagePullSecrets",
                     "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "restartPolicy",
                     "terminationGracePeriodSeconds", "schedulingGates", "overhead", "os", "resources"), _STARTS),
    **dict.fromkeys(("dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork", "hostPID",
                     "hostUsers", "hostname", "hostnameOverride", "setHostnameAsFQDN", "shareProcessNamespace",
                     "subdomain"), _NETWORK),
    **dict.fromkeys(("automountServiceAccountToken", "securityContext", "serviceAccount", "serviceAccountName"),
                    _RIGHTS),
    **dict.fromkeys(("nodeName", "runtimeClassName", "schedulerName", "tolerations", "topologySpreadConstraints",
                     "workloadRef", "schedulingGroup"), _PLACE),
}
#: The same of the `spec` of what makes pods.
WORKLOAD: Mapping[str, str] = dict.fromkeys(
    ("selector", "strategy", "updateStrategy", "minReadySeconds", "paused", "progressDeadlineSeconds",
     "revisionHistoryLimit", "serviceName", "podManagementPolicy", "persistentVolumeClaimRetentionPolicy", "ordinals",
     "volumeClaimTemplates", "rolloutStrategy", "startupPolicy", "networkConfig", "groupIdentity", "restartPolicy"),
    _ROLLS)
#: The same of a LeaderWorkerSet's `leaderWorkerTemplate`.
GROUP: Mapping[str, str] = {
    **dict.fromkeys(("restartPolicy", "volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy",
                     "resourceClaimTemplates"), _ROLLS),
    "subGroupPolicy": _PLACE,
}


def notes(table: Entry, read: Collection[str], idle: Mapping[str, str]) -> list[Note]:
    """Notes on the keys of *table* that have no effect.

    Raises UnknownKey for a key that is neither *read* nor *idle*.
    """
    said = []
    for key, entry in table.table.items():
        if key in idle:
            if not entry.is_null and not (entry.is_list and not entry.items):
                said.append(Note(entry.where, key, idle[key]))
        elif key not in read:
            known = sorted({*read, *idle})
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {nearest(key, known)}"
            raise UnknownKey(entry.where, f"there is no such field{hint}")
    return said


def tabled(near: Entry, values: Mapping[str, Entry]) -> Entry:
    """A table of *values*; it stands where *near* does."""
    rows = [(_scalar(value, key), value.node) for key, value in values.items()]
    node = yaml.MappingNode("tag:yaml.org,2002:map", rows, near.node.start_mark)
    return evolve(near, node=node, origins=_origins(near, [*values.values()]))


def listed(near: Entry, values: Sequence[Entry]) -> Entry:
    """A list of *values*."""
    node = yaml.SequenceNode("tag:yaml.org,2002:seq", [value.node for value in values], near.node.start_mark)
    return evolve(near, node=node, origins=_origins(near, values))


def _origins(near: Entry, values: Sequence[Entry]) -> Mapping[int, tuple[str, int]]:
    """Where the parts stand in the text."""
    inner = {place: origin for value in values for place, origin in value.origins.items()}
    return {**near.origins, **inner, **{id(value.node): (value.key, value.line) for value in values}}


def text(near: Entry, content: str) -> Entry:
    """A text that stands where *near* does."""
    return evolve(near, node=_scalar(near, content))


def texts(near: Entry, *contents: str) -> list[Entry]:
    return [text(near, content) for content in contents]


def _scalar(near: Entry, content: str) -> Any:
    return yaml.ScalarNode("tag:yaml.org,2002:str", content, near.node.start_mark)


#: Labels of NVIDIA's GPU feature discovery (`nvidia.com/gpu.product`): the names of boards with dashes.
PRODUCTS = {
    "a100-80g": "NVIDIA-A100-SXM4-80GB", "h100": "NVIDIA-H100-80GB-HBM3", "h200": "NVIDIA-H200",
    "b200": "NVIDIA-B200", "b300": "NVIDIA-B300", "gb200": "NVIDIA-GB200", "gb300": "NVIDIA-GB300",
    "l4": "NVIDIA-L4", "l40s": "NVIDIA-L40S", "rtx-pro-6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    "a100-40g": "NVIDIA-A100-SXM4-40GB", "a10g": "NVIDIA-A10G", "h100-pcie": "NVIDIA-H100-PCIe",
    "h100-nvl": "NVIDIA-H100-NVL", "h200-nvl": "NVIDIA-H200-NVL", "h20": "NVIDIA-H20", "gh200": "NVIDIA-GH200-480GB",
    "l40": "NVIDIA-L40", "t4": "Tesla-T4", "rtx-4090": "NVIDIA-GeForce-RTX-4090",
    "rtx-5090": "NVIDIA-GeForce-RTX-5090", "gb10": "NVIDIA-GB10",
}
#: Other values of labels, in lower case: Google's accelerators, and machine types of AWS, Azure, Google and Oracle.
_OTHERS = (
    (r"nvidia-b300-sxm6-ac", "b300"),
    (r"nvidia-h100-(mega-)?80gb|a3-(high|mega|edge)gpu-\d+g", "h100"),
    (r"p5\.(48|4)xlarge|standard_nd96isr_h100_v5|bm\.gpu\.h100\.8|h100_nvlink_80gb", "h100"),
    (r"nvidia-h200-141gb|a3-ultragpu-8g|p5en?\.48xlarge|standard_nd96isr_h200_v5|bm\.gpu\.h200\.8", "h200"),
    (r"a4-highgpu-8g|p6-b200\.48xlarge|bm\.gpu\.b200\.8", "b200"),
    (r"p6-b300\.48xlarge|bm\.gpu\.b300\.8", "b300"),
    (r"a4x-highgpu-4g|p6e-gb200\.36xlarge|standard_nd128isr_ndr_gb200_v6|bm\.gpu\.gb200\.4", "gb200"),
    (r"a4x-maxgpu-4g.*|p6e-gb300.*|standard_nd128isr_gb300_v6|bm\.gpu\.gb300\.4", "gb300"),
    (r"nvidia-a100-80gb|a2-ultragpu-\d+g|p4de\.24xlarge|standard_nd96am?sr_a100_v4|bm\.gpu\.a100-v2\.8", "a100-80g"),
    (r"g2-standard-\d+|g6\.\d*xlarge", "l4"),
    (r"nvidia-tesla-t4|g4dn\.(\d*xlarge|metal)", "t4"),
    (r"g5\.\d*xlarge", "a10g"),
    (r"nvidia-tesla-a100|a2-highgpu-\d+g|a2-megagpu-16g|p4d\.24xlarge|standard_nd96asr_v4|bm\.gpu4\.8", "a100-40g"),
    (r"g6e\.\d*xlarge|bm\.gpu\.l40s\.4", "l40s"),
    (r"nvidia-rtx-pro-6000|g4-standard-\d+|g7e\.\d*xlarge", "rtx-pro-6000"),
    (r"nvidia-(b200|b300|gb200|gb300|l4|l40s)", r"\1"),
)
#: Labels whose values say which GPU a node has.
KEYS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type", "gpu.nvidia.com/class", "gpu.nvidia.com/model",
        "karpenter.k8s.aws/instance-gpu-name")


def gpu_of(spec: Entry) -> dict[str, str]:
    """The `gpu` that the labels of *spec*'s nodes name; empty where no label does.

    Raises ConfigError for labels of a GPU that ksim does not know, or of two.
    """
    named: dict[str, Entry] = {}
    for key, values in _wanted_labels(spec):
        if key in KEYS:
            for value in values:
                named.setdefault(_gpu(key, value), value)
    if len(named) > 1:
        raise next(iter(named.values())).error(f"nodes may have {' or '.join(sorted(named))}, and a pool has one GPU;"
                                               f" name it: --gpu {min(named)}")
    return dict.fromkeys(("gpu",), min(named)) if named else {}


def _gpu(key: str, value: Entry) -> str:
    text = value.text.strip()
    for gpu, product in PRODUCTS.items():
        if text.lower() in (product.lower(), gpu, f"nvidia-{gpu}"):
            return gpu
    for pattern, gpu in _OTHERS:
        if match := re.fullmatch(pattern, text.lower()):
            return match.expand(gpu)
    raise ConfigError(value.where, f"{text!r} of the label {key} is no GPU or machine that ksim knows for certain; name"
                                   f" the nearest: --gpu {' or '.join(('h100', 'h200'))} (see `ksim list gpus`)")


def _wanted_labels(spec: Entry) -> list[tuple[str, list[Entry]]]:
    """The labels that a pod's nodes must have, with the values that each may have."""
    selector = spec.get("nodeSelector")
    wanted = [(key, [value]) for key, value in selector.table.items()] if selector else []
    for term in spec.each("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
                          "nodeSelectorTerms"):
        for expression in term.each("matchExpressions"):
            if expression.need("operator").text == "In":
                wanted.append((expression.need("key").text, expression.need("values").items))
    return wanted


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

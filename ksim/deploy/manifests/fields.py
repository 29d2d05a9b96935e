"""The fields of a manifest's tables: those that are read, those without effect here, and unknown ones."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from ksim.deploy.launches import Note
from ksim.deploy.texts.entries import Entry
from ksim.foundation.errors import UnknownKey, nearest

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

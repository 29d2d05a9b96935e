"""The names of the phases into which a request's time is split."""

from collections.abc import Sequence

#: The parts of a request's time: up to its first token, and from there to its last.
TO_FIRST, AFTER = "to_first", "after"

INTAKE, QUEUE, OTHERS_PREFILL, OTHERS_DECODE = "intake", "queue", "others_prefill", "others_decode"
PREEMPTED, RECOMPUTATION = "preempted", "recomputation"
SCHEDULE, LAUNCH, UPDATE = "schedule", "launch", "update"
COMMUNICATION, DELIVERY = "communication", "delivery"
#: Prefixes of the names of kernel families.
PREFILL, DECODE = "prefill.", "decode."

#: Groups in which phases are shown.
GROUPS = {
    "client and intake": (INTAKE,),
    "queue": (QUEUE,),
    "own prefill": (PREFILL,),
    "others' prefill": (OTHERS_PREFILL,),
    "others' decodes": (OTHERS_DECODE,),
    "decode": (DECODE,),
    "preemption": (PREEMPTED, RECOMPUTATION),
    "host": (SCHEDULE, LAUNCH, UPDATE),
    "communication": (COMMUNICATION,),
    "delivery": (DELIVERY,),
}


def phases(families: Sequence[str]) -> list[str]:
    """All phases in the order of a request's life, with kernels of these *families*."""
    return [INTAKE, QUEUE, *(PREFILL + family for family in families), OTHERS_PREFILL, OTHERS_DECODE,
            *(DECODE + family for family in families), PREEMPTED, RECOMPUTATION, SCHEDULE, LAUNCH, UPDATE,
            COMMUNICATION, DELIVERY]


def members(group: str, names: Sequence[str]) -> list[str]:
    """The *names* that belong to *group*."""
    own = GROUPS[group]
    return [name for name in names if any(name.startswith(of) if of.endswith(".") else name == of for of in own)]

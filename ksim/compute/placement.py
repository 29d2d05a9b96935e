"""Which rank holds which of a mixture's experts, and which of them are held several times.

Without EPLB, experts go to ranks in their order or in turns, one more to the first ranks where they do not divide
(vLLM, model_executor/layers/fused_moe/layer.py, `determine_expert_map`).  EPLB knows their loads: it copies the experts
whose copies have most, and packs the heaviest first onto the lightest rank that has room (github.com/deepseek-ai/EPLB,
its global way, which is what vLLM's distributed/eplb does where nodes and groups of experts are left out).
"""

import numpy as np
from numpy.typing import NDArray

from ksim.specs.shard import Placement

__all__ = ["copies", "fullness", "placed"]

Numbers = NDArray[np.float64]
#: The experts in the slots of each rank, by their numbers.
Held = list[NDArray[np.int64]]


def placed(load: Numbers, ranks: int, placement: Placement) -> Held:
    """Deal out experts of known *load* among *ranks*; raises ConfigError where EPLB's slots do not divide."""
    if placement.strategy == "balanced":
        return _balanced(load, ranks, placement)
    experts = np.arange(len(load))
    if placement.strategy == "round_robin":
        return [experts[rank::ranks] for rank in range(ranks)]
    return np.array_split(experts, ranks)


def copies(held: Held) -> NDArray[np.int64]:
    """How often each expert is held; its tokens divide evenly among its copies."""
    return np.bincount(np.concatenate(held))


def fullness(load: Numbers, held: Held) -> Numbers:
    """The load of each rank."""
    load_of_copy = load / copies(held)
    return np.array([load_of_copy[experts].sum() for experts in held])


def _balanced(load: Numbers, ranks: int, placement: Placement) -> Held:
    """Pack, but leave experts in their order, beside idle copies, if that is more even.

    EPLB does not look back; packing loses only to few experts of very different loads that happen to lie well.
    """
    room = placement.slots(len(load), ranks)
    packed, kept = _packed(load, _copied(load, placement.redundant), room), _kept(len(load), ranks, room)
    return min(packed, kept, key=lambda held: float(fullness(load, held).max()))


def _copied(load: Numbers, redundant: int) -> NDArray[np.int64]:
    """The expert in each slot: every one, and *redundant* copies, each of the one whose copies have most then."""
    counts = np.ones(len(load), dtype=np.int64)
    for _ in range(redundant):
        counts[np.argmax(load / counts)] += 1
    return np.repeat(np.arange(len(load)), counts)


def _packed(load: Numbers, slots: NDArray[np.int64], room: int) -> Held:
    """Put *room* of *slots* on each rank, the heaviest first onto the lightest that has room."""
    slot_load = (load / np.bincount(slots))[slots]
    held: list[list[int]] = [[] for _ in range(len(slots) // room)]
    weight = np.zeros(len(held))
    for slot in np.argsort(-slot_load, kind="stable"):
        lightest = int(weight.argmin())
        held[lightest].append(int(slots[slot]))
        weight[lightest] += slot_load[slot] if len(held[lightest]) < room else np.inf
    return [np.array(experts) for experts in held]


def _kept(experts: int, ranks: int, room: int) -> Held:
    """Experts in their order, and in the slots beyond them copies of the rank's own."""
    return [np.resize(held if len(held) else [rank % experts], room)
            for rank, held in enumerate(np.array_split(np.arange(experts), ranks))]

"""GPUs by the names that drivers, clouds and people give them, and the makers of those that are none of NVIDIA's."""

import re
from collections.abc import Callable, Iterable

__all__ = ["gpu_name", "maker"]

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

"""Which GPU a node has, by its labels: NVIDIA's, those of clouds, and the names of machine types."""

import re

from ksim.deploy.texts.entries import Entry
from ksim.foundation.errors import ConfigError

__all__ = ["KEYS", "PRODUCTS", "gpu_of"]

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

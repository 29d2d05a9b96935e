"""What AIConfigurator writes: its folders, and the workers that it chose.

AIConfigurator's folders: the file in one to import.

What AIConfigurator chose: workers with their sizes, formats and counts, as launches.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.deploy.commands import Command
from ksim.deploy.engines.launching import RELEASES, Release, release_of, stored
from ksim.deploy.engines.launching import release_named as named_release
from ksim.deploy.launches import Launch, Note, Wanted
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.units import DType
from ksim.scenario.models import named
from ksim.specs.shard import QUANTIZATIONS

__all__ = ["main_file", "Worker", "gpu_named", "load"]


#: Files of AIConfigurator, the first that is there counts; its generator_config.yaml has what the others lack.
_FILES = ("generator_config.yaml", "k8s_deploy.yaml", "best_config_topn.csv")
#: Docker Compose's own names of its file.
_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
#: Files of folders that another program must write out first, and how.
_WRITTEN_OUT = {"Chart.yaml": "is a Helm chart; render it first: helm template RELEASE {} > rendered.yaml",
                "kustomization.yaml": "is a kustomization; build it first: kubectl kustomize {} > built.yaml"}
#: Folders inside its results.
_INNER = ("top1", "agg", "disagg")


def main_file(folder: Path) -> Path:
    """The file of *folder* to import; raises DataError for a folder that no tool wrote which ksim knows."""
    for name, remedy in _WRITTEN_OUT.items():
        if (folder / name).is_file():
            raise DataError(str(folder), remedy.format(folder))
    for name in (*_FILES[:2], *_COMPOSE):
        if (folder / name).is_file():
            return folder / name
    inner = [folder / name for name in _INNER if (folder / name).is_dir()]
    if len(inner) == 1 and any(inner[0].iterdir()):
        return main_file(inner[0])
    if (folder / _FILES[2]).is_file():
        return folder / _FILES[2]
    if inner:
        raise DataError(str(folder), f"has several results; name one: {', '.join(str(path) for path in inner)}")
    raise DataError(str(folder), f"is a folder without {', '.join(_FILES)} or compose.yaml; name a file in it")


#: AIConfigurator's systems.
_SYSTEMS = {"a100_sxm": "a100-80g", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
            "gb200_sxm": "gb200", "gb200": "gb200", "gb300_sxm": "gb300", "gb300": "gb300", "l40s": "l40s", "l4": "l4",
            "rtx_pro_6000": "rtx-pro-6000"}
#: Its formats of weights, and of the KV cache.  It measures INT4 in groups of 128 where a checkpoint has no others
#: (collector/trtllm/collect_moe.py).
_WEIGHTS = {"bfloat16": "none", "float16": "none", "fp8": "fp8", "fp8_static": "fp8", "fp8_ootb": "fp8",
            "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4_w4a16_g128", "int8_wo": "int8_w8a16_channel",
            "sq": "int8_w8a8", "w4a16_mxfp4": "mxfp4",
            "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8"}
_CACHES = {"bfloat16": "auto", "float16": "auto", "auto": "auto", "fp8": "fp8"}


@frozen
class Worker:
    """A worker as a row of results has it: its columns behind a prefix such as `(p)`."""

    where: str
    backend: str
    version: str
    model: str
    system: str
    role: str
    count: int
    values: Mapping[str, Any]
    """tp, pp, dp, moe_tp, moe_ep, bs, gemm, kvcache, and further settings of the engine."""

    def launch(self, wanted: Wanted) -> Launch:
        """The engines; raises ConfigError for a backend, model or format that is not simulated."""
        release = self._release(wanted)
        model = named(wanted.model or self.model, self.where)
        hardware = {} if wanted.gpu or wanted.system else {"gpu": gpu_named(self.system, self.where)}
        formats = self._formats()
        if formats.get("quantization") == _WEIGHTS["int4_wo"] and (
                QUANTIZATIONS[stored(model)].weights.element is DType.INT4):
            del formats["quantization"]  # the checkpoint says how large its groups are
        serve = {**model.serve, **self._sizes(), **formats, **dict(self.values.get("further") or {})}
        assumed = [Note(self.where, self.model, text) for text in model.assumed]
        return Launch(self.where, release.engine, model.name, serve, self.role, self.count, hardware=hardware,
                      remarks=(*release.remarks, *assumed))

    def _release(self, wanted: Wanted) -> Release:
        """The release of ksim's that is nearest to the search's, or to the user's."""
        if self.backend not in RELEASES:
            raise ConfigError(self.where, f"{self.backend!r} is no engine that ksim simulates: {', '.join(RELEASES)}")
        if wanted.version or not self.version:
            return release_of(self.backend, Command((), self.where), wanted)
        return named_release(self.backend, self.version, self.where)

    def _sizes(self) -> dict[str, Any]:
        names = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
        sizes: dict[str, Any] = {name: self._count(key) for key, name in names.items() if self._count(key) > 1}
        experts, gpus = self._count("moe_ep"), self._count("tp") * self._count("dp")
        if experts > 1:
            sizes["enable_expert_parallel"] = True
            if experts != gpus:
                sizes["expert_parallel_size"] = experts
        if self._count("bs") and self.values.get("bs"):
            sizes["max_num_seqs"] = self._count("bs")
        return sizes

    def _count(self, key: str) -> int:
        text = str(self.values.get(key) or 1).strip()
        try:
            count = int(float(text))
        except (ValueError, OverflowError):
            count = 0
        if count < 1:
            raise ConfigError(self.where, f"{key}: expected a whole number above 0, not {text!r}")
        return count

    def _formats(self) -> dict[str, Any]:
        formats: dict[str, Any] = {}
        for key, table, setting, usual in (("gemm", _WEIGHTS, "quantization", None),
                                           ("kvcache", _CACHES, "kv_cache_dtype", "auto")):
            name = str(self.values.get(key) or "").strip()
            if name and name not in table:
                raise ConfigError(self.where, f"{key}: the format {name!r} is not simulated; there are"
                                              f" {', '.join(table)}")
            if name and table[name] != usual:
                formats[setting] = table[name]
        return formats


def gpu_named(system: str, where: str) -> str:
    """ksim's GPU of one of AIConfigurator's systems."""
    if system not in _SYSTEMS:
        raise ConfigError(where, f"{system!r} is no system that ksim knows; name the GPU: --gpu h200 (see `ksim list"
                                 " gpus`)")
    return _SYSTEMS[system]


def load(prompt: Any, output: Any, concurrency: Any, where: str) -> dict[str, Any]:
    """The workload that AIConfigurator planned for: requests of one length, so many at a time."""
    try:
        lengths = [int(float(prompt)), int(float(output))]
        clients = max(round(float(concurrency or 1)), 1)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(where, f"isl, osl and concurrency are numbers, not {prompt!r}, {output!r},"
                                 f" {concurrency!r}") from None
    return {"max_concurrency": clients, "synthetic": {
        "count": clients * 10, "arrivals": {"process": "burst"}, "prompt": {"kind": "fixed", "value": lengths[0]},
        "output": {"kind": "fixed", "value": lengths[1]}}}

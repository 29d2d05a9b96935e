"""AIConfigurator's results: generator_config.yaml with the manifest beside it, and rows of best_config_topn.csv."""

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from ksim.deploy.commands import Deployed, EngineLaunch, ImportOptions, Note, ShellCommand
from ksim.deploy.launching import RELEASES, Release, release_of, stored
from ksim.deploy.launching import release_named as named_release
from ksim.deploy.manifests.dynamo import DynamoFrontend
from ksim.deploy.readers.manifests import Kubernetes
from ksim.deploy.texts import Entry, Pasted, documents
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.models import named
from ksim.specs.shard import QUANTIZATIONS

__all__ = ["AIConfigurator"]


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
class SearchedWorker:
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

    def launch(self, wanted: ImportOptions) -> EngineLaunch:
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
        return EngineLaunch(self.where, release.engine, model.name, serve, self.role, self.count, hardware=hardware,
                            remarks=(*release.remarks, *assumed))

    def _release(self, wanted: ImportOptions) -> Release:
        """The release of ksim's that is nearest to the search's, or to the user's."""
        if self.backend not in RELEASES:
            raise ConfigError(self.where, f"{self.backend!r} is no engine that ksim simulates: {', '.join(RELEASES)}")
        if wanted.version or not self.version:
            return release_of(self.backend, ShellCommand((), self.where), wanted)
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


_YAML = re.compile(r"(?m)^(ServiceConfig|WorkerConfig|DynConfig|SlaConfig)\s*:")
_CSV = re.compile(r"\A[^\n]*\btokens/s/gpu\b[^\n]*\b(\(p\)|\(d\))?tp\b")
_MANIFEST = "k8s_deploy.yaml"
_SPLIT = {"(p)": "prefill", "(d)": "decode"}
#: Parameters of a worker by the columns that a row of results has for them.
_COLUMNS = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp",
            "moe_tensor_parallel_size": "moe_tp", "moe_expert_parallel_size": "moe_ep", "max_batch_size": "bs",
            "gemm_quant_mode": "gemm", "kvcache_quant_mode": "kvcache", "kv_cache_dtype": "kvcache"}
#: Parameters of a worker that ksim's settings have by another name.
_FURTHER = {"max_num_tokens": "max_num_batched_tokens", "max_seq_len": "max_model_len",
            "tokens_per_block": "block_size", "enable_chunked_prefill": "enable_chunked_prefill"}
_WHY_BEST = "the row that AIConfigurator ranks first; delete rows above another to take that"


class AIConfigurator:
    """Takes the workers of the manifest beside, with all their flags, or else those of the search's own parameters."""

    def recognises(self, pasted: Pasted) -> bool:
        return len({match[1] for match in _YAML.finditer(pasted.text)}) > 1 or bool(_CSV.match(pasted.text))

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The workers of the best configuration, the load that it is for, and its latency targets."""
        if _CSV.match(pasted.text):
            return _of_row(pasted, wanted)
        config, *more = documents(pasted)
        if more:
            raise more[0].error("is a second document; a generator_config.yaml has one")
        deployed = _beside(config, wanted) or _of_parameters(config, wanted)
        return evolve(deployed, scenario={**deployed.scenario, **_asked(config)})


def _beside(config: Entry, wanted: ImportOptions) -> Deployed | None:
    """What the manifest in the same folder deploys, on the GPU of the search."""
    path = config.pasted.folder / _MANIFEST
    if not config.pasted.source or not path.is_file():
        return None
    system = config.get("NodeConfig", "system_name")
    if system is not None and not wanted.gpu and not wanted.system:
        wanted = evolve(wanted, gpu=gpu_named(system.text, system.where))
    deployed = Kubernetes().read(Pasted.of_file(path), wanted)
    named = [evolve(launch, hardware={**launch.hardware, **({"gpu": wanted.gpu} if wanted.gpu else {})})
             for launch in deployed.launches]
    return evolve(deployed, launches=tuple(named))


def _asked(config: Entry) -> dict[str, Any]:
    """`workload` and `slo` of what the search was asked for."""
    sla = config.get("SlaConfig")
    if sla is None:
        return {}
    asked: dict[str, Any] = {}
    prompt, output = sla.get("isl"), sla.get("osl")
    if prompt is not None and output is not None:
        clients = config.text_of("BenchConfig", "estimated_concurrency", usual="1")
        asked["workload"] = load(prompt.text, output.text, clients, sla.where)
    targets = {key: f"{value.text} ms" for key in ("ttft", "tpot") if (value := sla.get(key)) is not None}
    return {**asked, **({"slo": targets} if targets else {})}


def _of_parameters(config: Entry, wanted: ImportOptions) -> Deployed:
    """The workers by the search's own parameters, without a manifest."""
    system, split = config.text_of("NodeConfig", "system_name"), config.text_of("DynConfig", "mode") != "agg"
    if not system and not wanted.gpu and not wanted.system:
        raise config.error("has no NodeConfig.system_name, so it does not say on which GPU; name it: --gpu h200")
    launches = [_worker(config, side, system).launch(wanted)
                for side in (("prefill", "decode") if split else ("agg",))]
    return Deployed(tuple(launches), _router(launches, config.flag_of("DynConfig", "enable_router")))


def _router(launches: list[EngineLaunch], by_cache: bool) -> dict[str, Any]:
    """How Dynamo's frontend routes."""
    frontend = DynamoFrontend({"name": "dynamo_kv" if by_cache else "round_robin"})
    if len(launches) == 1:
        return {"router": frontend.router} if launches[0].replicas > 1 else {}
    return {"pair_router": frontend.pair_router}


def _worker(config: Entry, side: str, system: str) -> SearchedWorker:
    params = config.get("params", side) or config.get("Workers", side)
    if params is None:
        raise config.error(f"has no params.{side}")
    values: dict[str, Any] = {column: entry.text for key, column in _COLUMNS.items()
                              if (entry := params.get(key)) is not None}
    values["further"] = {name: entry.plain for key, name in _FURTHER.items() if (entry := params.get(key)) is not None}
    image = config.get("K8sConfig", "k8s_image")
    model = config.get("ServiceConfig", "model_path") or config.need("ServiceConfig", "served_model_path")
    return SearchedWorker(params.where, _backend(config, image), "", model.text, system,
                          role="both" if side == "agg" else side,
                          count=max(config.count_of("WorkerConfig", f"{side}_workers"), 1), values=values)


def _backend(config: Entry, image: Entry | None) -> str:
    said = config.get("backend")
    if said is not None:
        return said.text
    match = re.search(r"vllm|sglang|tensorrtllm|trtllm", image.text) if image is not None else None
    if match is None:
        raise config.error("does not say which engine runs: K8sConfig.k8s_image names none of vllm, sglang,"
                           " tensorrtllm; import the k8s_deploy.yaml beside it")
    return "trtllm" if match[0].startswith("t") else match[0]


def _of_row(pasted: Pasted, wanted: ImportOptions) -> Deployed:
    """The workers of the first row of a table of results."""
    row, where = _first_row(pasted), pasted.at(2)
    prefixes = [*_SPLIT] if row.get("(p)tp") else [""]
    launches = [_row_worker(row, prefix, where).launch(wanted) for prefix in prefixes]
    scenario = {"workload": load(row.get("isl"), row.get("osl"), row.get("concurrency"), where)}
    return Deployed(tuple(launches), {**_router(launches, False), **scenario},
                    remarks=(Note(where, "row 1", _WHY_BEST),))


def _first_row(pasted: Pasted) -> Mapping[str, str]:
    try:
        row: Mapping[str, str] | None = next(csv.DictReader(io.StringIO(pasted.text, newline="")), None)
    except csv.Error as error:
        raise ConfigError(pasted.source or "the text", f"is no table of results: {error}") from None
    if row is None:
        raise ConfigError(pasted.at(1), "has no row of results")
    return row


def _row_worker(row: Mapping[str, str], prefix: str, where: str) -> SearchedWorker:
    columns = {column: row.get(f"{prefix}{column}") for column in _COLUMNS.values()}
    count = row.get(f"{prefix}workers") or 1
    said = {key: str(row.get(f"{prefix}{key}") or row.get(key) or "") for key in ("backend", "version", "system")}
    return SearchedWorker(where, said["backend"], said["version"], str(row.get("model") or ""), said["system"],
                          role=_SPLIT.get(prefix, "both"), count=_workers(count, where), values=columns)


def _workers(text: Any, where: str) -> int:
    try:
        return max(int(float(text)), 1)
    except (ValueError, OverflowError):
        raise ConfigError(where, f"workers: expected a whole number, not {text!r}") from None

"""Recipes of srt-slurm (`srtctl apply`): workers of SGLang, vLLM or TensorRT-LLM on nodes of Slurm.

https://github.com/NVIDIA/srt-slurm, docs/config-reference.md
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from attrs import evolve

from ksim.deploy.commands import Deployed, EngineLaunch, ImportOptions, Note, ShellCommand, Word, launch_of
from ksim.deploy.manifests.dynamo import DynamoFrontend
from ksim.deploy.proxies import flag_words, proxy_of
from ksim.deploy.readers.aiconfigurator import load
from ksim.deploy.texts import Entry, Pasted, documents
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scenario.models import named

__all__ = ["SrtSlurm"]

_RECIPE = re.compile(r"(?m)^\s{0,4}(sglang_config|trtllm_config|vllm_config)\s*:")
_RESOURCES = re.compile(r"(?m)^\s{0,4}resources\s*:")
#: Modes of workers, by the name of their resources, and their roles.
_MODES = {"prefill": ("prefill", "prefill"), "decode": ("decode", "decode"), "aggregated": ("agg", "both")}
_STARTS = {"sglang": ("python3", "-m", "dynamo.sglang"), "vllm": ("python3", "-m", "dynamo.vllm"),
           "trtllm": ("trtllm-serve",)}
_SERVER_ROLES = {"prefill": ("--server_role", "CONTEXT"), "decode": ("--server_role", "GENERATION")}
_ALIAS = "the cluster's own name of the model; served-model-name says which it is"
_SEVERAL = "the first of several is the workload; the others are --set workload.max_concurrency=N"


class SrtSlurm:
    """Writes each mode's table out as the command of its workers, and reads that."""

    def recognises(self, pasted: Pasted) -> bool:
        return bool(_RECIPE.search(pasted.text) and _RESOURCES.search(pasted.text)) and (
            "apiVersion" not in pasted.text)

    def read(self, pasted: Pasted, wanted: ImportOptions) -> Deployed:
        """The workers, the router and the load; raises ConfigError for a recipe with variants."""
        recipe, *more = documents(pasted)
        if more:
            raise more[0].error("is a second document; a recipe of srt-slurm has one")
        if (base := recipe.get("base")) is not None:
            raise base.error("is the base of several variants; write one out first: srtctl resolve-override -f FILE")
        engine = recipe.text_of("backend", "type", usual="sglang")
        if engine not in _STARTS:
            raise recipe.need("backend", "type").error(f"{engine!r} is no engine that ksim simulates:"
                                                       f" {', '.join(_STARTS)}")
        modes = recipe.need("backend", f"{engine}_config")
        launches = [_launch(recipe, modes.need(mode), mode, engine, wanted) for mode in _MODES
                    if modes.get(mode) is not None and _workers(recipe, mode)]
        if not launches:
            raise modes.error("has no workers: expected prefill and decode, or aggregated, and as many in resources")
        scenario, idle = _frontend(recipe, launches)
        asked, remarks = _load(recipe)
        return Deployed(tuple(launches), {**scenario, **asked}, tuple(idle), tuple(remarks))


def _resource(recipe: Entry, key: str) -> int | None:
    value = recipe.get("resources", key)
    return value.count if value is not None else None


def _workers(recipe: Entry, mode: str) -> int:
    """How many workers of a *mode* there are; one where only nodes are said."""
    short = _MODES[mode][0]
    workers = _resource(recipe, f"{short}_workers")
    return int(bool(_resource(recipe, f"{short}_nodes"))) if workers is None else workers


def _launch(recipe: Entry, config: Entry, mode: str, engine: str, wanted: ImportOptions) -> EngineLaunch:
    model, remarks = _model(recipe, config, wanted)
    role = _MODES[mode][1]
    start = [Word(text, config.where) for text in _STARTS[engine]]
    files: dict[str, str] = {}
    if engine == "trtllm":
        name = config.key
        files[name] = yaml.serialize(config.node)
        words = [*start, model, *(Word(text, config.where) for text in (
            *_SERVER_ROLES.get(role, ()), "--extra_llm_api_options", name))]
    else:
        flags = [word for key, value in config.table.items() if key.replace("_", "-") != "model-path"
                 for word in flag_words(key, value, false="")]
        words = [*start, Word("--model", model.where), model, *flags]
    launch = launch_of(ShellCommand(tuple(words), config.where, _environment(recipe, mode), _image(recipe), files,
                                    config.pasted.folder), wanted)
    noted = evolve(launch, role=role, replicas=launch.replicas * _workers(recipe, mode),
                   remarks=(*launch.remarks, *remarks, *_fit(recipe, config, mode, launch)))
    return noted if wanted.gpu or wanted.system else evolve(noted, hardware={**launch.hardware, "gpu": _gpu(recipe)})


def _model(recipe: Entry, config: Entry, wanted: ImportOptions) -> tuple[Word, list[Note]]:
    """The model's name or path; where it is an alias of the cluster's, what clients call it."""
    path = recipe.need("model", "path")
    text = path.text.removeprefix("hf:")
    served = config.get("served-model-name") or config.get("served_model_name")
    if served is None or wanted.model:
        return Word(text, path.where), []
    try:
        named(text, path.where, path.pasted.folder)
    except ConfigError:
        return Word(served.text, served.where), [Note(path.where, text, _ALIAS)]
    return Word(text, path.where), []


def _gpu(recipe: Entry) -> str:
    said = recipe.need("resources", "gpu_type")
    if said.text.lower() not in catalog.entries("gpus"):
        raise said.error(f"{said.text!r} is no GPU that ksim knows; name it, such as --gpu h100 (see `ksim list gpus`)")
    return said.text.lower()


def _image(recipe: Entry) -> Word | None:
    """The container, whose tag names the release: an image, or a file that enroot made of one."""
    said = recipe.get("model", "container")
    if said is None:
        return None
    file = re.fullmatch(r".*?([\w.-]+)\+([\w.-]+)\+(.+)\.sqsh", said.text)
    return Word(f"{file[1]}/{file[2]}:{file[3]}" if file else said.text, said.where)


def _environment(recipe: Entry, mode: str) -> dict[str, Word]:
    table = recipe.get("backend", f"{mode}_environment")
    return {name: Word(value.text, value.where) for name, value in (table.table if table is not None else {}).items()}


def _fit(recipe: Entry, config: Entry, mode: str, launch: EngineLaunch) -> Iterator[Note]:
    """A note on the GPUs of a worker that it does not use; raises ConfigError where it needs more than it has."""
    short, node = _MODES[mode][0], _resource(recipe, "gpus_per_node")
    nodes, there = _resource(recipe, f"{short}_nodes"), _resource(recipe, f"gpus_per_{short}")
    if there is None and nodes and node:
        there = nodes * node // max(_workers(recipe, mode), 1)
    needed = launch.gpus * launch.replicas
    if there is not None and needed > there:
        raise config.error(f"a worker needs {needed} GPUs, and resources give it {there}")
    if there is not None and needed < there:
        yield Note(config.where, f"{there} GPUs", f"a worker uses {needed} of them")


def _frontend(recipe: Entry, launches: list[EngineLaunch]) -> tuple[dict[str, Any], list[Note]]:
    """The router of requests: Dynamo's frontend, or SGLang's router."""
    table, kind = recipe.get("frontend", "args"), recipe.get("frontend", "type")
    words = [word for key, value in (table.table if table is not None else {}).items()
             for word in flag_words(key, value, false="")]
    splits = any(launch.role == "prefill" for launch in launches)
    if not splits and sum(launch.replicas for launch in launches) < 2:
        return {}, []
    if kind is not None and kind.text == "sglang":
        proxy = proxy_of(ShellCommand((Word("sglang_router", kind.where), *words), kind.where))
        assert proxy is not None, "a router of SGLang's"
        return {key: value for key, value in proxy.scenario.items() if (key == "pair_router") == splits}, [*proxy.idle]
    if kind is not None and kind.text != "dynamo":
        raise kind.error(f"{kind.text!r} is no frontend that ksim knows; there are dynamo, sglang")
    frontend = DynamoFrontend.of(words, _variables(recipe))
    return ({"pair_router": frontend.pair_router} if splits else {"router": frontend.router}), [*frontend.idle]


def _variables(recipe: Entry) -> Mapping[str, Word]:
    table = recipe.get("frontend", "env")
    return {name: Word(value.text, value.where) for name, value in (table.table if table is not None else {}).items()}


def _load(recipe: Entry) -> tuple[dict[str, Any], list[Note]]:
    """The workload that the recipe measures with: requests of one length, so many at a time."""
    prompt, output = recipe.get("benchmark", "isl"), recipe.get("benchmark", "osl")
    clients = recipe.get("benchmark", "concurrencies")
    if prompt is None or output is None or clients is None:
        return {}, []
    counts = clients.texts if clients.is_list else clients.text.split("x")
    if not counts:
        return {}, []
    said = [Note(clients.where, f"concurrencies {'x'.join(counts)}", _SEVERAL)] if len(counts) > 1 else []
    return {"workload": load(prompt.text, output.text, counts[0], clients.where)}, said

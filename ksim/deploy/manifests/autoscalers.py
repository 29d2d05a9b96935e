"""Autoscalers of manifests: whose pods they scale, and what they become in the scenario."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import evolve, frozen

from ksim.deploy.commands import Deployed, EngineLaunch, ImportOptions, Maker, Note
from ksim.deploy.manifests import containers, fields
from ksim.deploy.texts import Entry, Pasted, documents
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.scenario.hardware import system_of
from ksim.specs.pools import whole


@frozen
class _Form:
    """The name of the autoscaler that a kind is, and the keys of its limits."""

    name: str
    least: str
    most: str


_FORMS = {"HorizontalPodAutoscaler": _Form("hpa", "minReplicas", "maxReplicas"),
          "ScaledObject": _Form("keda", "minReplicaCount", "maxReplicaCount")}
_VARIANT = "VariantAutoscaling"
#: The kinds of documents that scale pods.
SCALERS = (*_FORMS, _VARIANT)
_VERSIONS = ("autoscaling/v2", "autoscaling/v2beta2")
#: Annotations of a ScaledObject that end its scaling, all of which begin so.
_PAUSED = "autoscaling.keda.sh/paused"
#: What llm-d's WVA exports for an HPA or a ScaledObject to follow, by its name now and then.
_DESIRED = re.compile(r"\b(wva|inferno)_desired_replicas\b")


def choice_of(document: Entry) -> Choice:
    """The autoscaler that a *document* is; raises ConfigError for what is wrong in it, by line and key."""
    form, spec = _FORMS[document.need("kind").text], document.need("spec")
    _check(document)
    options = {key: value for key, value in _without_nulls(spec.plain).items() if key != "scaleTargetRef"}
    choice = Choice(form.name, options)
    try:
        plugin("autoscaling", choice)
    except ConfigError as error:
        raise _located(spec, error, form.name) from None
    return choice


def alone_in(pasted: Pasted) -> Choice:
    """The one autoscaler in a manifest; raises ConfigError where there is none, or more."""
    found = [document for document in containers.unlisted(documents(pasted)) if containers.kind_of(document) in _FORMS]
    if len(found) != 1:
        raise ConfigError(pasted.source or "the text", f"has {len(found)} documents of the kinds {', '.join(_FORMS)};"
                                                       " give a manifest with one")
    return choice_of(found[0])


def _check(document: Entry) -> None:
    """Raise ConfigError for an HPA of a version without metrics of engines, and for a ScaledObject that is paused."""
    version = document.need("apiVersion")
    if document.need("kind").text in _FORMS and version.text.startswith("autoscaling/"):
        cpu = document.get("spec", "targetCPUUtilizationPercentage")
        if version.text not in _VERSIONS:
            raise (cpu or version).error("scales by the CPU that pods use, which ksim does not simulate; scale by a"
                                         " metric of engines, such as vllm:num_requests_waiting, in autoscaling/v2")
    annotations = document.get("metadata", "annotations")
    for key, value in (annotations.table if annotations is not None else {}).items():
        if key.startswith(_PAUSED) and value.text.lower() != "false":
            raise value.error("is paused, so it does not scale; take the annotation or the whole object out")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


_KEYS = re.compile(r"([A-Za-z_][\w.\[\]-]*): (.*)", re.DOTALL)
_PARTS = re.compile(r"[^.\[\]]+")


def _located(spec: Entry, error: ConfigError, name: str) -> ConfigError:
    """*error* of the autoscaler called *name* at the line of *spec* that it is about."""
    where, problem = error.args
    keys = [*_PARTS.findall(where.removeprefix(name).removeprefix(": "))]
    while match := _KEYS.match(problem):
        if _inner(spec, [*keys, *_PARTS.findall(match[1])]) is None:
            break
        keys, problem = [*keys, *_PARTS.findall(match[1])], match[2]
    for count in range(len(keys), -1, -1):
        if (entry := _inner(spec, keys[:count])) is not None:
            missing = "".join(f".{key}" for key in keys[count:])
            return type(error)(f"{entry.where}{missing}", problem)
    raise AssertionError("spec is there")


def _inner(entry: Entry, keys: Sequence[str]) -> Entry | None:
    for key in keys:
        found = entry.table.get(key) if entry.is_table else (
            dict(enumerate(entry.items)).get(int(key)) if entry.is_list and key.isdigit() else None)
        if found is None:
            return None
        entry = found
    return entry


def target_of(document: Entry) -> tuple[str, str]:
    """The kind and the name of what a *document* scales."""
    reference = document.get("spec", "scaleTargetRef")
    if reference is None and document.need("kind").text == _VARIANT:  # before it had one, it was called like its target
        return "Deployment", document.need("metadata", "name").text
    reference = document.need("spec", "scaleTargetRef")
    kind = "Deployment" if document.need("kind").text == "ScaledObject" else ""  # KEDA's default
    return (reference.text_of("kind", usual=kind) if kind else reference.need("kind").text), reference.need("name").text


#: The fields of a PodDisruptionBudget, and the keys of a pool's `disruption_budget`.
_BUDGET = {"minAvailable": "min_available", "maxUnavailable": "max_unavailable"}


def checked_budget(document: Entry) -> Mapping[str, int | str]:
    """A PodDisruptionBudget as a pool's `disruption_budget`; raises ConfigError for one that Kubernetes would refuse.
    """
    spec = document.need("spec")
    said = {name: value.plain for key, name in _BUDGET.items() if (value := spec.get(key)) is not None}
    if len(said) != 1:
        raise spec.error(f"a PodDisruptionBudget needs one of {' and '.join(_BUDGET)}")
    for value in said.values():
        with _named(spec):
            whole(value, 1, up=True)
    fields.notes(spec, "disruption_budget")
    return said


@contextmanager
def _named(entry: Entry) -> Iterator[None]:
    """Have ConfigErrors of what is no number of pods name *entry*."""
    try:
        yield
    except ConfigError as error:
        raise entry.error(" ".join(error.args)) from None


def _with_budgets(deployed: Deployed) -> Deployed:
    """*deployed*, whose pools have the disruption budgets that select their pods.

    Raises ConfigError for two of the same pods, which Kubernetes evicts none of.
    """
    launches, idle, guards = [*deployed.launches], list[Note](), dict[int, Entry]()
    for document in deployed.budgets:
        budget = checked_budget(document)
        places = [place for place, launch in enumerate(launches) if _selects(document, launch)]
        if len(places) != 1:
            why = "selects the pods of several pools, and a budget is of one here" if places else (
                "selects no pods that are a replica each")
            idle.append(Note(document.where, called(document), why))
        for place in places if len(places) == 1 else ():
            if place in guards:
                raise document.error(f"selects the pods of {launches[place].name}, as {called(guards[place])} does"
                                     f" ({guards[place].place}), and Kubernetes evicts no pod of two budgets; take one"
                                     " of them out")
            guards[place] = document
            launches[place] = _guarded(launches[place], document, budget)
    return evolve(deployed, launches=tuple(launches), budgets=(), idle=(*deployed.idle, *idle))


def _guarded(launch: EngineLaunch, document: Entry, budget: Mapping[str, int | str]) -> EngineLaunch:
    """*launch* with the *budget* of a *document*."""
    ends = {**launch.pool.get("lifecycle", {}), "disruption_budget": budget}
    remarks = [Note(document.where, called(document), "a node is drained when drains says so")]
    policy = document.get("spec", "unhealthyPodEvictionPolicy")
    if policy is not None and policy.text != _POLICY:
        remarks.append(Note(policy.where, policy.text, f"pods that are not ready are evicted as {_POLICY} has it"))
    return evolve(launch, pool={**launch.pool, "lifecycle": ends}, remarks=(*launch.remarks, *remarks))


#: Kubernetes' unhealthyPodEvictionPolicy where none is set.
_POLICY = "IfHealthyBudget"
_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, values: value in values, "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None, "DoesNotExist": lambda value, values: value is None}


def _selects(document: Entry, launch: EngineLaunch) -> bool:
    """Whether the selector of a *document* selects the pods of *launch*, of which each is a replica."""
    selector = document.get("spec", "selector")
    if selector is None or launch.maker is None or launch.maker.labels is None or _engines(launch) != 1:
        return False
    labels = {key: label.text for key, label in launch.maker.labels.table.items()}
    wanted = selector.get("matchLabels")
    rules = [_rule(labels, rule) for rule in selector.each("matchExpressions")]
    return all(rules) and all(labels.get(key) == label.text for key, label in (wanted.table if wanted else {}).items())


def _rule(labels: Mapping[str, str], rule: Entry) -> bool:
    operator = rule.need("operator")
    if operator.text not in _OPERATORS:
        raise operator.error(f"must be one of {', '.join(_OPERATORS)}, not {operator.text!r}")
    return _OPERATORS[operator.text](labels.get(rule.need("key").text), [each.text for each in rule.each("values")])


def called(document: Entry) -> str:
    return f"{document.need('kind').text} {document.text_of('metadata', 'name', usual='without a name')}"


def with_autoscalers(deployed: Deployed, wanted: ImportOptions) -> Deployed:
    """*deployed*, whose engines are in pools that its autoscalers scale, with their disruption budgets; those of 0
    replicas that none scales are out.

    Raises ConfigError for an autoscaler whose target is not there, and for two of one target.
    """
    launches, scalers, variants = [*deployed.launches], dict[int, Entry](), dict[int, Entry]()
    idle: list[Note] = []
    for document in deployed.autoscalers:
        is_variant = document.need("kind").text == _VARIANT
        if is_variant and not {*document.need("spec").table} <= {*_OF_VARIANT}:
            idle.append(Note(document.where, called(document), fields.without_effect("kinds")[_VARIANT]))
        elif (place := _place(document, deployed)) is None:
            idle.append(Note(document.where, called(document), f"scales {' '.join(target_of(document))}, which starts"
                                                               " no engine"))
        else:
            _take(variants if is_variant else scalers, place, document)
    followed = {place for place in {*variants} & {*scalers} if _follows_wva(scalers[place])}
    idle += [Note(document.where, called(document), "no HorizontalPodAutoscaler or ScaledObject follows it")
             for place, document in variants.items() if place not in followed]
    for place, document in scalers.items():
        stay = sum(launch.replicas * launch.gpus for number, launch in enumerate(launches) if number not in scalers)
        room = _Room.of(launches[place], wanted, stay)
        launches[place] = _scaled(launches[place], document, room, wva=place in followed)
    scenario = _wva(launches, {place: variants[place] for place in sorted(followed)})
    empty = [launch for launch in launches if not launch.pool and launch.maker and launch.maker.replicas == 0]
    idle += [Note(launch.maker.where, launch.name, "has 0 replicas") for launch in empty if launch.maker]
    scaled = evolve(deployed, launches=tuple(launch for launch in launches if launch not in empty), autoscalers=(),
                    scenario={**deployed.scenario, **scenario}, idle=(*deployed.idle, *dict.fromkeys(idle)))
    return _with_budgets(scaled)


def _take(scaled: dict[int, Entry], place: int, document: Entry) -> None:
    if place in scaled:
        raise document.error(f"scales {' '.join(target_of(document))}, as {called(scaled[place])} does"
                             f" ({scaled[place].place}); take one of them out")
    scaled[place] = document


def _place(document: Entry, deployed: Deployed) -> int | None:
    """The place of the engines that *document* scales; None where its target starts none.

    Raises ConfigError where there is no such target, and where each of its pods starts several engines.
    """
    target = target_of(document)
    places = [place for place, launch in enumerate(deployed.launches)
              if launch.maker is not None and (launch.maker.kind, launch.maker.name) == target
              and (launch.replicas or not launch.maker.replicas)]
    if not places and target not in deployed.others:
        there = [f"{launch.maker.kind} {launch.maker.name}" for launch in deployed.launches if launch.maker is not None]
        raise (document.get("spec", "scaleTargetRef") or document).error(
            f"there is no {' '.join(target)}; engines are started by {', '.join(dict.fromkeys(there)) or 'none'}:"
            f" import its manifest too")
    if len(places) > 1 or any(_engines(deployed.launches[place]) != 1 for place in places):
        raise document.error(f"scales {' '.join(target)}, which is there several times, or whose pods start several"
                             " engines each; ksim scales engines one by one")
    return places[0] if places else None


def _engines(launch: EngineLaunch) -> int:
    """The engines of a pod; 1 where there are no pods that could say it."""
    there = launch.maker.replicas if launch.maker is not None else None
    return launch.replicas // (1 if there is None else there) if there != 0 else 1


def _scaled(launch: EngineLaunch, document: Entry, room: "_Room | None", wva: bool) -> EngineLaunch:
    """*launch* as a pool that *document* scales, or only limits where it follows *wva*."""
    form, spec = _FORMS[document.need("kind").text], document.need("spec")
    choice = None if wva else choice_of(document)
    remarks = [] if choice is not None else [Note(document.where, called(document), _AT_ONCE)]
    stated = spec.get(form.most)
    most = stated.count if stated is not None else _unlimited(document, room, remarks)
    replicas = launch.replicas
    assert launch.maker is not None, "its maker is what is scaled"
    if launch.maker.replicas is None:
        replicas = spec.count_of(form.least, usual=1 if form.name == "hpa" else 0)
        why = f"{launch.maker.kind} {launch.maker.name} says none: {form.least} of {called(document)}"
        remarks.append(Note(launch.maker.where, f"replicas = {replicas}", why))
    if most < replicas:
        raise (stated or spec).error(f"is {most}, and {launch.maker.kind} {launch.maker.name} has {replicas} replicas"
                                     " at the start; set one of them to the other")
    ends = dict(_lifecycle(launch.maker, remarks))
    pool = {"max_replicas": most, **({"autoscaler": {"name": choice.name, **choice.options}} if choice else {}),
            **({"lifecycle": ends} if ends else {})}
    return evolve(launch, replicas=replicas, pool=pool, remarks=(*launch.remarks, *remarks),
                  idle=tuple(note for note in launch.idle if note.word not in _OF_ENDS))


#: Fields that say how replicas end, which have no effect on those that stay.
_OF_ENDS = ("terminationGracePeriodSeconds", "lifecycle", "strategy")
#: Kubernetes' terminationGracePeriodSeconds.
_GRACE = 30


def _lifecycle(maker: Maker, remarks: list[Note]) -> Iterator[tuple[str, Any]]:
    """How replicas end, as a pool's `lifecycle` says it; what is assumed is added to *remarks*."""
    grace = maker.pod.get(_OF_ENDS[0]) if maker.pod is not None else None
    if grace is not None:
        yield "termination_grace_period", f"{grace.count} s"
    elif not maker.kind.startswith("Dynamo"):  # its operator may set another one
        yield "termination_grace_period", f"{_GRACE} s"
        remarks.append(Note(maker.where, f"termination_grace_period = {_GRACE} s", f"{_OF_ENDS[0]} is not set:"
                                                                                   " Kubernetes' default"))
    hook = maker.container.get("lifecycle", "preStop") if maker.container is not None else None
    if hook is not None and grace is None and maker.kind.startswith("Dynamo"):
        raise hook.error(f"is part of the grace period, which is not known; set {_OF_ENDS[0]}")
    if hook is not None:
        yield "pre_stop", f"{_slept(hook, remarks)} s"
    if maker.strategy is not None and (rules := dict(_update(maker.strategy, remarks))):
        yield "rolling_update", rules
        remarks.append(Note(maker.strategy.where, "strategy", "an update comes when lifecycle.rolling_update.at says"))


_SLEEP = re.compile(r"(?:\S*sh -c )?(?:exec )?(?:\S*/)?sleep (\d+(?:\.\d+)?)s?")


def _slept(hook: Entry, remarks: list[Note]) -> str:
    """The seconds that a preStop hook sleeps; 0 for one that does something else, which *remarks* say."""
    if (seconds := hook.get("sleep", "seconds")) is not None:
        return str(seconds.count)
    command = " ".join(" ".join(word.text for word in hook.each("exec", "command")).split())
    if match := _SLEEP.fullmatch(command):
        return match[1]
    remarks.append(Note(hook.where, "preStop", "nobody knows how long this hook takes; it is taken to take no time"))
    return "0"


def _update(strategy: Entry, remarks: list[Note]) -> Iterator[tuple[str, int | str]]:
    kind = strategy.text_of("type", usual="RollingUpdate")
    if kind not in ("RollingUpdate", "Recreate"):
        raise strategy.need("type").error(f"must be RollingUpdate or Recreate, not {kind!r}")
    if kind == "Recreate":
        remarks.append(Note(strategy.where, kind, "all replicas go at once; new ones start as soon as there are GPUs,"
                                                  " and not only when the last one has gone"))
        yield from (("max_surge", 0), ("max_unavailable", "100%"))
        return
    fields.notes(strategy, "strategy")
    rules = strategy.get("rollingUpdate")
    for key, name in (("maxSurge", "max_surge"), ("maxUnavailable", "max_unavailable")):
        if rules is not None and (value := rules.get(key)) is not None:
            with _named(value):
                whole(value.plain, 1, up=True)
            yield name, value.plain


_AT_ONCE = ("follows llm-d's WVA: its maximum is kept; replicas become what WVA wants at once, without its windows,"
            " rates and minimum")
#: The maxReplicaCount of a ScaledObject that has none.
_KEDA_MOST = 100


@frozen
class _Room:
    """How many `replicas` fit on so many `nodes` beside the engines that stay; GPUs of others may pass to them."""

    replicas: int
    nodes: int

    @classmethod
    def of(cls, launch: EngineLaunch, wanted: ImportOptions, stay: int) -> "_Room | None":
        """The room for *launch* beside so many GPUs that *stay* with others; None where nobody states the nodes."""
        nodes = wanted.nodes or launch.hardware.get("nodes")
        given = {"gpu": wanted.gpu, "system": wanted.system} if wanted.gpu or wanted.system else launch.hardware
        if not nodes or not (given.get("gpu") or given.get("system")):
            return None
        gpus = nodes * system_of(given.get("gpu"), given.get("system")).gpus_per_node
        return cls((gpus - stay) // launch.gpus, nodes)


def _unlimited(document: Entry, room: _Room | None, remarks: list[Note]) -> int:
    """The most replicas that a ScaledObject without a limit may have: KEDA's, or what the stated nodes have GPUs for.
    """
    form = _FORMS[document.need("kind").text]
    if form.name == "hpa":
        raise document.need("spec").error(f"has no {form.most}")
    why, most = f"{form.most} is not set: KEDA's default", _KEDA_MOST
    if room is not None and room.replicas < _KEDA_MOST:
        most = room.replicas
        why = (f"{form.most} is not set, and KEDA's default is {_KEDA_MOST}: nodes = {room.nodes} has GPUs for so many,"
               " and further ones are pending")
    if most < 1:
        raise document.need("spec").error(f"has no {form.most}, and nodes = {room.nodes if room else 0} has no GPUs for"
                                          " a replica; name more --nodes")
    remarks.append(Note(document.where, f"max_replicas = {most}", why))
    return most


def _follows_wva(document: Entry) -> bool:
    """Whether all metrics of *document* are what WVA wants."""
    spec = document.need("spec")
    asked = [str(metric.plain) for key in ("metrics", "triggers") for metric in spec.each(key)]
    return bool(asked) and all(_DESIRED.search(metric) for metric in asked)


#: The keys of a VariantAutoscaling's spec that are read; its limits are those of what follows it.
_OF_VARIANT = ("scaleTargetRef", "modelID", "variantCost", "minReplicas", "maxReplicas")


def _wva(launches: list[EngineLaunch], variants: Mapping[int, Entry]) -> dict[str, Any]:
    """Have WVA scale the pools of *variants*: one alone, several together, for which the scenario's key is returned.

    Raises ConfigError where other pools have no autoscaler, which the scenario's would scale too.
    """
    scaler = {"name": "wva"}
    if len(variants) == 1:
        for place in variants:
            launches[place] = evolve(launches[place], pool={**launches[place].pool, "autoscaler": scaler})
    if len(variants) < 2:
        return {}
    for place, launch in enumerate(launches):
        if place not in variants and "autoscaler" not in launch.pool:
            raise ConfigError(launch.where, f"{launch.name or launch.role} has no {_VARIANT}, and ksim's wva scales all"
                                            " pools that have no autoscaler of their own; import them apart")
    costs = dict(_costs(launches, variants))
    return {"autoscaler": {**scaler, **({"costs": costs} if costs else {})}}


def _costs(launches: Sequence[EngineLaunch], variants: Mapping[int, Entry]) -> Iterator[tuple[str, float]]:
    for place, document in variants.items():
        if (cost := document.get("spec", "variantCost")) is not None:
            try:
                yield launches[place].name, float(cost.text)
            except ValueError:
                raise cost.error(f"expected a number, not {cost.text!r}") from None


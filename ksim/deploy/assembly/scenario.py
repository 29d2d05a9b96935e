"""Launches to a scenario: one launch is the scenario itself, several are its pools."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from ksim.deploy.assembly.connectors import alone_or_joined
from ksim.deploy.assembly.contexts import within_context
from ksim.deploy.assembly.pools import engines
from ksim.deploy.launches import Deployed, Imported, Launch, Note, Wanted
from ksim.deploy.workload.made_up import made_up
from ksim.foundation.errors import ConfigError
from ksim.simulation.scenario_tables import merged
from ksim.specs.pools import ROLES


def assembled(deployed: Deployed, wanted: Wanted) -> Imported:
    """The scenario of all launches of *deployed*; raises ConfigError where they are none, or not of one fleet."""
    if not deployed.launches:
        raise ConfigError("the text", "starts no engine")
    launches = [within_context(launch) for launch in
                alone_or_joined(_with_roles(_whole(deployed.launches), wanted))]
    _check_one_model(launches)
    further: Mapping[str, Any] = {}
    for launch in launches:
        further = merged(further, launch.scenario)
    table, remarks = engines(launches, wanted)
    whole = {"model": launches[0].model, **table, **merged(_by_sides(further, launches), deployed.scenario)}
    if "workload" not in whole:
        load, note = made_up(min((launch.serve["max_model_len"] for launch in launches
                                  if launch.serve.get("max_model_len")), default=None))
        whole, remarks = {**whole, **load}, [note, *remarks]
    notes = [note for launch in deployed.launches for note in launch.idle]
    said = [note for launch in launches for note in launch.remarks]
    return Imported(whole, _once([*notes, *deployed.idle]), _once([*remarks, *said, *deployed.remarks]))


def _by_sides(further: Mapping[str, Any], launches: Sequence[Launch]) -> Mapping[str, Any]:
    """*further*, in which the router of data-parallel ranks chooses on each side where engines prefill for others."""
    if "router" not in further or not any(launch.role == "prefill" for launch in launches):
        return further
    others = {key: value for key, value in further.items() if key != "router"}
    return {"pair_router": {"name": "each_side", "prefill": further["router"], "decode": further["router"]}, **others}


def _once(notes: Sequence[Note]) -> tuple[Note, ...]:
    return tuple(dict.fromkeys(notes))


def _whole(launches: Sequence[Launch]) -> list[Launch]:
    """Those that are engines of their own: not the further nodes of one that several lines start."""
    return [launch for launch in launches if launch.replicas] or [evolve(launches[0], replicas=1)]


def _with_roles(launches: Sequence[Launch], wanted: Wanted) -> list[Launch]:
    """*launches* with the roles that the user gives; raises ConfigError where one is open."""
    if wanted.roles:
        return _with_given_roles(launches, wanted.roles)
    if {launch.role for launch in launches} & {"prefill", "decode"}:
        for launch in launches:
            if not launch.role:
                raise ConfigError(launch.where, "does not say whether its engine prefills, decodes or both; name the"
                                                " roles of all engines in order: --role prefill --role decode")
    return [evolve(launch, role=launch.role or "both") for launch in launches]


def _with_given_roles(launches: Sequence[Launch], roles: Sequence[str]) -> list[Launch]:
    if len(roles) != len(launches):
        raise ConfigError("--role", f"names {len(roles)} roles for {len(launches)} engines; name one for each, in"
                                    f" order")
    for role in roles:
        if role not in ROLES:
            raise ConfigError("--role", f"must be one of {', '.join(ROLES)}, not {role!r}")
    return [evolve(launch, role=role) for launch, role in zip(launches, roles, strict=True)]


def _check_one_model(launches: Sequence[Launch]) -> None:
    first = launches[0]
    for launch in launches:
        if launch.model != first.model:
            raise ConfigError(launch.where, f"serves {launch.model}, and {first.where} serves {first.model}; a scenario"
                                            f" has one model: import them one by one")

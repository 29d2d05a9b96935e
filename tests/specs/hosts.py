"""Hosts for tests: all costs are nothing, but for those named."""

from attrs import fields

from ksim.specs.host import Client, Core, Host, Inputs, Worker

PARTS = {"client": Client, "core": Core, "worker": Worker, "inputs": Inputs}


def host(**costs: dict[str, float]) -> Host:
    """Costs by part, such as ``core={"update": 3}``; seconds."""
    parts = {name: part(**{**{field.name: 0.0 for field in fields(part)}, **costs.get(name, {})})
             for name, part in PARTS.items()}
    return Host("a test's", **parts, source="a test")


def as_toml(made: Host) -> str:
    """The file that describes *made*."""
    lines = [f'name = "{made.name}"', f'source = "{made.source}"']
    for name, part in PARTS.items():
        costs = getattr(made, name)
        lines += [f"[{name}]", *(f"{field.name} = {getattr(costs, field.name)}" for field in fields(part))]
    return "\n".join(lines) + "\n"

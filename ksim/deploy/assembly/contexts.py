"""Contexts that are longer than the catalogue's, as later checkpoints of the same architecture have them."""

from attrs import evolve

from ksim.deploy.launches import Launch, Note
from ksim.simulation.models import model_of


def within_context(launch: Launch) -> Launch:
    """*launch* with no longer context than its model's config.json has."""
    asked = launch.serve.get("max_model_len")
    most = model_of(launch.model, launch.serve.get("hf_overrides", {})).max_length
    if not isinstance(asked, int) or asked <= most:
        return launch
    why = (f"left out: {launch.model} of the catalogue has {most} tokens; for requests that are longer, download the"
           f" config.json of your model and name it with --model, or say how it is stretched with --hf-overrides")
    serve = {key: value for key, value in launch.serve.items() if key != "max_model_len"}
    return evolve(launch, serve=serve, remarks=(*launch.remarks, Note(launch.where, f"max_model_len = {asked}", why)))

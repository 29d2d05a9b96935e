"""A scenario to the texts that start it, by the writer of a form."""

from pathlib import Path

from ksim.deploy.export.outgoing import Outgoing
from ksim.foundation import catalog
from ksim.simulation.scenario import Scenario

__all__ = ["exported"]

FOLDER = "deploy.writers"


def exported(path: Path, form: str, derived: bool = False) -> dict[str, str]:
    """The texts of *form* for the scenario at *path*, by the ending of their file's name; the first has none.

    Raises KsimError for a scenario that the form cannot say.
    """
    texts: dict[str, str] = catalog.find(FOLDER, form)().write(Outgoing.of(Scenario.read(path), derived))
    return texts

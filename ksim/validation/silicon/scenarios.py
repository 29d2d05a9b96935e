"""From a measured run to a scenario that simulates it."""

from ksim.simulation.scenario import Scenario
from ksim.validation.silicon.recipes import one_engine
from ksim.validation.silicon.rows import Row
from ksim.validation.silicon.split import two_pools


def scenario(row: Row) -> Scenario:
    """The scenario of *row*; raises NotRun, with the reason, for a row that cannot be simulated."""
    return two_pools(row) if row.mode == "disagg" else one_engine(row)

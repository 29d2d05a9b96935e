"""The scheduler of an engine with a KV connector: jobs wait for KV from elsewhere, and leave theirs for others."""

from attrs import define, field

from ksim.scheduling.connector import Connector
from ksim.scheduling.scheduler import Scheduler


@define(eq=False)
class ConnectorScheduler(Scheduler):
    """Asks `connector` for what the prefix cache lacks, before a job is admitted."""

    connector: Connector = field(kw_only=True)  # type: ignore[misc]

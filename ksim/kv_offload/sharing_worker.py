"""The workers' side of a connector behind whose host memory lies a storage that other engines share."""

from collections.abc import Mapping
from typing import Any

from attrs import define

from ksim.flow.copied import Copied
from ksim.kv_offload.worker import OffloadWorker
from ksim.scheduling.job import Job

__all__ = ["SharingWorker"]


@define(eq=False, kw_only=True)
class SharingWorker(OffloadWorker):
    """Logs reads and writes of the storage; its `connector` knows from where each load came."""

    connector: Any

    def _log_copy(self, job: Job, ends: tuple[str, str], began: tuple[float, float], size: float, tokens: int) -> None:
        """Log that *size* bytes of *job* have gone between the *ends*, asked for and begun at those times."""
        self.log.add(Copied(self.network.env.now, job.request.id, self.number, *ends, asked=began[0], began=began[1],
                            bytes=size, tokens=tokens))

    def _origin(self, number: int) -> Mapping[str, int]:
        origin: Mapping[str, int] = self.connector.origins.pop(number, {})
        return origin

    @property
    def may_start_flows(self) -> bool:
        return True  # other engines share the storage

    @property
    def waits_for_peers(self) -> bool:
        return True  # what others have written is found from then on

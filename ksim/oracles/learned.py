"""Efficiencies learned on other GPUs: for one of which only the data sheet is known."""

from collections.abc import Sequence
from pathlib import Path

from attrs import define, field

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.foundation.errors import ConfigError
from ksim.oracles import Estimate
from ksim.oracles.compiled.attention import Singly
from ksim.oracles.efficiency.answers import Estimates
from ksim.oracles.efficiency.estimates import Profiled, shipped
from ksim.oracles.efficiency.profile import Profile
from ksim.oracles.efficiency.several import Several
from ksim.specs.hardware import Gpu

__all__ = ["Learned"]


@define
class Learned:
    """`path` is a profile that speaks of any GPU; the one that ships was fitted to public tables of nine.

    A GPU of an architecture among them is priced by what the others taught, as
    if it had never been measured: `measured` is the oracle for one that was.
    """

    path: Path | None = None
    _priced: Profiled | None = field(default=None, init=False, eq=False)

    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        return self.estimate(kernel, gpu).seconds

    def estimate(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        return self.estimates([kernel], gpu)[0]

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        """All of *kernels* at once, which is faster than one by one."""
        return self.prices.estimates(kernels, gpu)

    def columns(self, kernel: Attention, gpu: Gpu) -> Estimates:
        """Of many kernels that are one, whose counts are columns."""
        return self.prices.columns(kernel, gpu)

    def several(self, kernels: Several, gpu: Gpu) -> Estimates | None:
        """Of many kernels that are one, whose numbers are columns; None where they have to be asked about each."""
        return self.prices.several(kernels, gpu)

    def singly(self, layer: AttentionLayer, gpu: Gpu) -> Singly | None:
        """What prices kernels of *layer* one by one, where there is a short way to."""
        return self.prices.singly(layer, gpu)

    @property
    def prices(self) -> Profiled:
        if self._priced is None:
            profile = Profile.load(Path(self.path or shipped("learned")))
            if profile.gpu:
                raise ConfigError(str(profile.path), f"is a profile of {profile.gpu} alone; give it to oracle"
                                                     f" 'measured'")
            self._priced = Profiled(profile, "learned")
        return self._priced

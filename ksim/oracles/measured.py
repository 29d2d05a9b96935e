"""Efficiencies measured on the GPU itself, by one sweep over kernels of any model."""

from collections.abc import Sequence
from pathlib import Path

from attrs import define, field

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import Attention, AttentionLayer
from ksim.foundation.errors import ConfigError
from ksim.oracles import Estimate
from ksim.oracles.compiled.attention import Singly
from ksim.oracles.efficiency.answers import Estimates
from ksim.oracles.efficiency.estimates import PROFILES, Profiled
from ksim.oracles.efficiency.profile import Profile
from ksim.oracles.efficiency.several import Several
from ksim.oracles.learned import Learned
from ksim.specs.hardware import Gpu

__all__ = ["Measured"]


@define
class Measured:
    """`path` is the GPU's profile, as `ksim calibrate` writes it; by default the one that ships for the GPU.

    Beyond what was measured, efficiencies pass over to those of the `learned`
    oracle, and estimates say that they are extrapolated.
    """

    path: Path | None = None
    _priced: dict[str, Profiled] = field(factory=dict, init=False, eq=False)

    def seconds(self, kernel: Kernel, gpu: Gpu) -> float:
        return self.estimate(kernel, gpu).seconds

    def estimate(self, kernel: Kernel, gpu: Gpu) -> Estimate:
        return self.estimates([kernel], gpu)[0]

    def estimates(self, kernels: Sequence[Kernel], gpu: Gpu) -> list[Estimate]:
        """All of *kernels* at once; raises ConfigError where no profile speaks of *gpu*."""
        return self.prices(gpu).estimates(kernels, gpu)

    def columns(self, kernel: Attention, gpu: Gpu) -> Estimates:
        """Of many kernels that are one, whose counts are columns."""
        return self.prices(gpu).columns(kernel, gpu)

    def several(self, kernels: Several, gpu: Gpu) -> Estimates | None:
        """Of many kernels that are one, whose numbers are columns; None where they have to be asked about each."""
        return self.prices(gpu).several(kernels, gpu)

    def singly(self, layer: AttentionLayer, gpu: Gpu) -> Singly | None:
        """What prices kernels of *layer* one by one, where there is a short way to."""
        return self.prices(gpu).singly(layer, gpu)

    def prices(self, gpu: Gpu) -> Profiled:
        if gpu.name not in self._priced:
            profile = Profile.load(Path(self.path)) if self.path else self._shipped(gpu)
            if profile.gpu != gpu.name:
                raise ConfigError(str(profile.path), f"is a profile of {profile.gpu}, not of {gpu.name};"
                                                     f" choose another, or oracle 'learned'")
            self._priced[gpu.name] = Profiled(profile, "measured", Learned().prices)
        return self._priced[gpu.name]

    @staticmethod
    def _shipped(gpu: Gpu) -> Profile:
        known = []
        for path in sorted(PROFILES.glob("*.npz")):
            profile = Profile.load(path)
            if profile.gpu == gpu.name:
                return profile
            known.append(profile.gpu)
        raise ConfigError("oracle measured", f"has no profile of {gpu.name} (it has"
                                             f" {', '.join(sorted(filter(None, known)))}); take oracle 'learned', or"
                                             f" make one with `ksim sweep-kernels` and `ksim calibrate`")

"""Efficiencies measured on the GPU itself, by one sweep over kernels of any model."""

from pathlib import Path

from attrs import define, field

from ksim.foundation.errors import ConfigError
from ksim.oracles.efficiency.profiled import PROFILES, Profile, Profiled, ProfileOracle
from ksim.oracles.learned import Learned
from ksim.specs.hardware import Gpu

__all__ = ["Measured"]


@define
class Measured(ProfileOracle):
    """`path` is the GPU's profile, as `ksim gpu calibrate` writes it; by default the one that ships for the GPU.

    Beyond what was measured, efficiencies pass over to those of the `learned`
    oracle, and estimates say that they are extrapolated.
    """

    path: Path | None = None
    _profiled: dict[str, Profiled] = field(factory=dict, init=False, eq=False)

    def prices(self, gpu: Gpu) -> Profiled:
        if gpu.name not in self._profiled:
            profile = Profile.load(Path(self.path)) if self.path else self._shipped(gpu)
            if profile.gpu not in (gpu.name, gpu.profile):
                raise ConfigError(str(profile.path), f"is a profile of {profile.gpu}, not of {gpu.name};"
                                                     f" choose another, or oracle 'learned'")
            self._profiled[gpu.name] = Profiled(profile, "measured", Learned().prices(gpu))
        return self._profiled[gpu.name]

    @staticmethod
    def _shipped(gpu: Gpu) -> Profile:
        known = []
        for path in sorted(PROFILES.glob("*.npz")):
            profile = Profile.load(path)
            if profile.gpu == (gpu.profile or gpu.name):
                return profile
            known.append(profile.gpu)
        raise ConfigError("oracle measured", f"has no profile of {gpu.name} (it has"
                                             f" {', '.join(sorted(filter(None, known)))}); take oracle 'learned', or"
                                             f" make one with `ksim gpu points` and `ksim gpu calibrate`")

"""Efficiencies learned on other GPUs: for one of which only the data sheet is known."""

from pathlib import Path

from attrs import define, field

from ksim.foundation.errors import ConfigError
from ksim.oracles.efficiency.profiled import Profile, Profiled, ProfileOracle, shipped
from ksim.specs.hardware import Gpu

__all__ = ["Learned"]


@define
class Learned(ProfileOracle):
    """`path` is a profile that speaks of any GPU; the one that ships was fitted to public tables of nine.

    A GPU of an architecture among them is priced by what the others taught, as
    if it had never been measured: `measured` is the oracle for one that was.
    """

    path: Path | None = None
    _profiled: Profiled | None = field(default=None, init=False, eq=False)

    def prices(self, gpu: Gpu) -> Profiled:
        """The profile that was learned, which is the same for any GPU."""
        if self._profiled is None:
            profile = Profile.load(Path(self.path or shipped("learned")))
            if profile.gpu:
                raise ConfigError(str(profile.path), f"is a profile of {profile.gpu} alone; give it to oracle"
                                                     f" 'measured'")
            self._profiled = Profiled(profile, "learned")
        return self._profiled

"""Dynamo's older SLA planner, 0.9: replicas from forecasts, profiles and factors that correct these."""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil, isnan
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from attrs import define, field, frozen
from attrs.validators import ge, gt, min_len

from ksim.autoscaling import Decision, Observation
from ksim.autoscaling.forecasts import FORECASTS, Forecast, PredictorOptions, library
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

__all__ = ["DynamoPlanner09"]

#: Points of the grid on which profiles of decode are interpolated, along each axis.
_RESOLUTION = 100


def _row(values: Any) -> "np.ndarray":
    return np.asarray(values, dtype=float)


@frozen(eq=False)
class PrefillProfile:
    """What was measured of prefill: milliseconds and tokens/s of a GPU by tokens of prompts."""

    prefill_isl: "np.ndarray" = field(converter=_row, validator=min_len(4))
    prefill_ttft: "np.ndarray" = field(converter=_row)
    prefill_thpt_per_gpu: "np.ndarray" = field(converter=_row)

    def ttft(self, prompt: float) -> float:
        return self._at(prompt, self.prefill_ttft)

    def rate(self, prompt: float) -> float:
        return self._at(prompt, self.prefill_thpt_per_gpu)

    def _at(self, prompt: float, values: "np.ndarray") -> float:
        """A cubic spline, clamped at the ends of what was measured."""
        inside = min(max(prompt, self.prefill_isl.min()), self.prefill_isl.max())
        return float(_interpolate().interp1d(self.prefill_isl, values, kind="cubic")(inside))


@frozen(eq=False)
class DecodeProfile:
    """What was measured of decode: milliseconds and tokens/s of a GPU by use of the KV cache and tokens of contexts."""

    x_kv_usage: "np.ndarray" = field(converter=_row, validator=min_len(4))
    y_context_length: "np.ndarray" = field(converter=_row)
    z_itl: "np.ndarray" = field(converter=_row)
    z_thpt_per_gpu: "np.ndarray" = field(converter=_row)
    max_kv_tokens: int = field(validator=gt(0))

    def itl(self, requests: float, context: float) -> float:
        """The time between tokens of so many requests at once."""
        usage = requests * context / self.max_kv_tokens
        return float(self._grid("z_itl")[self._context(context), _nearest(usage, 1.0)])

    def best_rate(self, itl: float, context: float) -> float:
        """The tokens/s at the fullest cache within *itl*, or at an empty one where none is."""
        row = self._context(context)
        itls, rates = self._grid("z_itl")[row], self._grid("z_thpt_per_gpu")[row]
        within = np.flatnonzero(itls <= itl)
        return float(rates[within[-1] if within.size else 0])

    def _context(self, context: float) -> int:
        return _nearest(context, float(self.y_context_length.max()))

    def _grid(self, name: str) -> "np.ndarray":
        """Values by contexts and use of the cache."""
        return _grid(tuple(self.x_kv_usage), tuple(self.y_context_length), tuple(getattr(self, name)))


@lru_cache(maxsize=16)
def _grid(usage: tuple[float, ...], contexts: tuple[float, ...], values: tuple[float, ...]) -> "np.ndarray":
    """*values* on the grid: cubic inside what was measured, and the nearest outside.  It takes a quarter of a second.
    """
    axes = np.meshgrid(np.linspace(0, 1, _RESOLUTION), np.linspace(0, max(contexts), _RESOLUTION))
    grid, nearest = (_interpolate().griddata((usage, contexts), values, tuple(axes), method=method)
                     for method in ("cubic", "nearest"))
    return np.asarray(np.where(np.isnan(grid), nearest, grid))


def _nearest(value: float, most: float) -> int:
    """The point of an axis from 0 to *most* that is nearest to *value*; halves to even."""
    return int(np.clip(np.round(value / (most / (_RESOLUTION - 1))), 0, _RESOLUTION - 1))


def _interpolate() -> Any:
    return library("scipy.interpolate", "fit", "dynamo_planner_09")


@frozen
class Interval:
    """What was seen of an interval: requests, mean tokens, and mean seconds to the first token, between tokens and of a
    request; not a number without requests."""

    requests: float
    prompt: float
    output: float
    ttft: float
    itl: float
    duration: float

    @property
    def is_whole(self) -> bool:
        return not any(map(isnan, (self.requests, self.prompt, self.output, self.ttft, self.itl, self.duration)))


def _profile(value: Any) -> Any:
    """A profile as a table, or the path of a JSON file of one."""
    return value if isinstance(value, Mapping) else catalog.read(Path(value))


@define
class DynamoPlanner09(PredictorOptions):
    """Every interval, prefill for the tokens of prompts that are expected, decode for those of answers, at the rates of
    a profile; what is seen of latencies corrects them.

    `profile` has the tables `prefill` and `decode` of Dynamo's profiler (prefill_raw_data.json, decode_raw_data.json).
    A TTFT above the profile's never adds engines.  Latencies are in milliseconds; options are called as there.
    """

    source: ClassVar[str] = "github.com/ai-dynamo/dynamo, dynamo/planner, 0.9.1"
    profile: Any = field(converter=_profile)
    adjustment_interval: int = field(default=180, validator=gt(0))
    max_gpu_budget: int = field(default=8, validator=gt(0))
    min_endpoint: int = field(default=1, validator=ge(0))
    prefill_engine_num_gpu: int = field(default=1, validator=gt(0))
    decode_engine_num_gpu: int = field(default=1, validator=gt(0))
    ttft: float = field(default=500.0, validator=gt(0))
    itl: float = field(default=50.0, validator=gt(0))
    no_correction: bool = False
    #: The factors of prefill and decode, and the requests, prompts and answers that were expected last.
    factors: tuple[float, float] = field(default=(1.0, 1.0), init=False)
    expected: tuple[float, float, float] | None = field(default=None, init=False)
    _prefill: PrefillProfile = field(init=False)
    _decode: DecodeProfile = field(init=False)
    _forecasts: list[Forecast] = field(init=False)
    _started: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if {*self.profile} != {"prefill", "decode"}:
            raise ValueError("profile: expected the tables prefill and decode")
        self._prefill = _read(PrefillProfile, self.profile["prefill"], "profile.prefill")
        self._decode = _read(DecodeProfile, self.profile["decode"], "profile.decode")
        settings = self.forecast_settings(self.adjustment_interval, old=True)
        self._forecasts = [FORECASTS[self.load_predictor](settings) for _ in range(3)]

    @property
    def interval(self) -> float:
        return float(self.adjustment_interval)

    def decide(self, seen: Observation) -> Decision | None:
        if missing := [role for role in ("prefill", "decode") if role not in seen.pools]:
            raise ConfigError("autoscaler", f"dynamo_planner_09 scales pools called prefill and decode; there is no"
                                            f" {missing[0]}")
        prefill, decode = seen.pools["prefill"], seen.pools["decode"]
        if not self._started:  # the first interval has not been yet
            self._started = True
            return None
        duration = prefill.ttft + decode.itl * decode.output_tokens
        wanted = self.adjust(Interval(prefill.arrivals, prefill.input_tokens, decode.output_tokens, prefill.ttft,
                                      decode.itl, duration), len(decode.ready))
        if wanted is None or wanted == (prefill.wanted, decode.wanted):
            return None
        requests, prompt, output = self.expected or (0.0, 0.0, 0.0)
        return Decision({"prefill": wanted[0], "decode": wanted[1]},
                        f"{requests:.4g} requests of {prompt:.4g} and {output:.4g} tokens are expected; factors"
                        f" {self.factors[0]:.3g} and {self.factors[1]:.3g}")

    def adjust(self, seen: Interval, decoders: int) -> tuple[int, int] | None:
        """The replicas of prefill and decode after an interval, with so many *decoders*; None decides nothing."""
        self.expected = None
        for row, value in zip(self._forecasts, (seen.requests, seen.prompt, seen.output), strict=True):
            row.add(value)
        if not seen.is_whole or not (self.no_correction or self._correct(seen, decoders)):
            return None
        requests, prompt, output = (row.next() for row in self._forecasts)
        self.expected = requests, prompt, output
        return self._within_budget(self._prefills(requests, prompt), self._decodes(requests, prompt, output))

    def _correct(self, seen: Interval, decoders: int) -> bool:
        """Compare latencies with the profile's, at the concurrency of Little's law; whether there was one to compare.
        """
        self.factors = 1000.0 * seen.ttft / self._prefill.ttft(seen.prompt), self.factors[1]
        if not decoders:
            return False
        concurrency = seen.requests / decoders * seen.duration / self.adjustment_interval
        self.factors = self.factors[0], 1000.0 * seen.itl / self._decode.itl(concurrency, _context(seen.prompt,
                                                                                                seen.output))
        return True

    def _prefills(self, requests: float, prompt: float) -> int:
        rate = requests * prompt / self.adjustment_interval * min(1.0, self.factors[0])
        return max(self.min_endpoint, ceil(rate / self._prefill.rate(prompt) / self.prefill_engine_num_gpu))

    def _decodes(self, requests: float, prompt: float, output: float) -> int:
        itl = self.itl / self.factors[1] if self.factors[1] > 0 else self.itl
        rate = requests * output / self.adjustment_interval
        per_gpu = self._decode.best_rate(itl, _context(prompt, output))
        return max(self.min_endpoint, ceil(rate / per_gpu / self.decode_engine_num_gpu))

    def _within_budget(self, prefills: int, decodes: int) -> tuple[int, int]:
        """Both cut alike, prefill rounded first and halves to even; fewest replicas beat the budget."""
        costs = self.prefill_engine_num_gpu, self.decode_engine_num_gpu
        total = prefills * costs[0] + decodes * costs[1]
        if total <= self.max_gpu_budget:
            return prefills, decodes
        prefills = max(self.min_endpoint, round(prefills * self.max_gpu_budget / total))
        left = round((self.max_gpu_budget - prefills * costs[0]) / costs[1])
        return prefills, max(self.min_endpoint, left)


def _context(prompt: float, output: float) -> float:
    """The mean context while a request is decoded."""
    return prompt + output / 2


def _read(cls: Any, table: Any, where: str) -> Any:
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: expected a table")
    try:
        return cls(**table)
    except TypeError as error:
        raise ConfigError(where, str(error).partition(") ")[2] or str(error)) from None

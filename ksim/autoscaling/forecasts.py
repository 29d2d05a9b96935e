"""Forecasts of a load from its past: the predictors of Dynamo's planner, which both of its versions have.

Rules are those of dynamo/planner/core/load/predictors.py, 1.6.1.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from math import expm1, isnan, log1p
from typing import Any, Protocol

from attrs import define, field, frozen
from attrs.validators import ge, gt, in_

from ksim.foundation.errors import MissingExtra

#: With fewer values than these, the last one is the forecast.
_LEAST = 5


class Forecast(Protocol):
    """The next of a row of values that come at equal intervals."""

    def add(self, value: float) -> None:
        """Take the next value; not a number counts as 0, and zeros before the first other value are not learnt."""
        ...

    def next(self) -> float:
        """The value to come, 0 or more; 0 if nothing is known."""
        ...

    def go_live(self) -> None:
        """What was learnt is of the past: zeros that come now are skipped again."""
        ...


@frozen
class ForecastSettings:
    """How forecasts are made; `log1p` is of values y, as log(1 + y), and `step` the seconds between two of them.

    `old` has the rules of 0.9.1: Kalman's forecasts count from the first value on, Prophet's are for a moment near the
    start, and both may be below 0.
    """

    log1p: bool = False
    q_level: float = 1.0
    q_trend: float = 0.1
    r: float = 10.0
    min_points: int = _LEAST
    window: int = 50
    step: float = 180.0
    old: bool = False

    def back(self, value: float) -> float:
        """A forecast in the model's space as one of values."""
        if self.log1p:
            return max(0.0, expm1(value))
        return value if self.old else max(0.0, value)


@define
class _History:
    """Values as they are learnt, in the model's space."""

    settings: ForecastSettings
    values: list[float] = field(factory=list, init=False)
    _live: bool = field(default=False, init=False)

    def go_live(self) -> None:
        self._live = False

    def take(self, value: float) -> bool:
        """Learn *value*, unless it is a leading zero."""
        value = 0.0 if isnan(value) else value
        if value == 0 and not self._live:
            return False
        self._live = self._live or value != 0
        self.values.append(value)
        return True

    @property
    def last(self) -> float:
        return self.values[-1] if self.values else 0.0


@define
class Constant(_History):
    """The next value is the last one."""

    def add(self, value: float) -> None:
        self.take(value)

    def next(self) -> float:
        return self.last


@define
class Kalman(_History):
    """A Kalman filter of a level and its trend; the covariance is updated in Joseph's form."""

    _level: float = field(default=0.0, init=False)
    _trend: float = field(default=0.0, init=False)
    _p: tuple[float, float, float] = field(default=(1000.0, 0.0, 1000.0), init=False)  # of level, both, trend
    _ahead: bool = field(default=False, init=False)

    def add(self, value: float) -> None:
        if not self.take(value):
            return
        seen = log1p(max(0.0, self.last)) if self.settings.log1p else self.last
        if len(self.values) == 1:
            self._level = seen
        else:
            self._go_ahead()
            self._correct(seen)
        self._ahead = False

    def next(self) -> float:
        if len(self.values) < (1 if self.settings.old else self.settings.min_points):
            return self.last
        self._go_ahead()
        return self.settings.back(self._level)

    def _go_ahead(self) -> None:
        """To the next interval, once."""
        if self._ahead:
            return
        level, both, trend = self._p
        self._p = (level + 2 * both + trend + max(1e-12, self.settings.q_level), both + trend,
                   trend + max(1e-12, self.settings.q_trend))
        self._level += self._trend
        self._ahead = True

    def _correct(self, seen: float) -> None:
        level, both, trend = self._p
        noise = max(1e-9, self.settings.r)
        gain, drift = level / (level + noise), both / (level + noise)
        off = seen - self._level
        self._level += gain * off
        self._trend += drift * off
        self._p = ((1 - gain) ** 2 * level + gain * gain * noise,
                   (1 - gain) * (both - drift * level) + gain * drift * noise,
                   trend - 2 * drift * both + drift * drift * (level + noise))


@define
class Arima(_History):
    """pmdarima's auto_arima, fitted once to five values or more and then updated.

    An order of (0, d, 0) hardly follows a load, so the logarithm is fitted instead.
    """

    _model: Any = field(default=None, init=False)
    _log: bool = field(default=False, init=False)
    _pending: list[float] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        library("pmdarima")

    def add(self, value: float) -> None:
        if self.take(value):
            self.values[-1] = max(0.0, self.last)
            self._pending.append(self.last)

    def next(self) -> float:
        if len(self.values) < _LEAST or len({*self.values}) == 1:
            return self.last
        try:
            self._learn()
            forecast = float(self._model.predict(n_periods=1)[0])
        except Exception:  # whatever the solver raises, the planner goes on with the last value
            return self.last
        finally:
            self._pending = []
        return max(0.0, expm1(forecast) if self._log else forecast)

    def _learn(self) -> None:
        if self._model is not None:
            if self._pending:
                self._model.update(self._scaled(self._pending))
            return
        self._log = self.settings.log1p
        self._model = self._fit(self._scaled(self.values))
        p, _, q = self._model.order
        if p == q == 0 and not self._log:
            logs = self._fit([log1p(value) for value in self.values])
            self._log, self._model = True, logs

    def _scaled(self, values: list[float]) -> list[float]:
        return [log1p(value) for value in values] if self._log else list(values)

    def _fit(self, values: list[float]) -> Any:
        return library("pmdarima").auto_arima(values, suppress_warnings=True, error_action="ignore")


@define
class Prophet(_History):
    """Meta's Prophet with its own settings, fitted anew each time to the last values of the window."""

    _count: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        library("prophet")

    def add(self, value: float) -> None:
        if self.take(value):
            if self.settings.log1p:
                self.values[-1] = log1p(max(0.0, self.last))
            self._count += 1
            del self.values[:-self.settings.window]

    def next(self) -> float:
        if len(self.values) < _LEAST:
            return max(0.0, expm1(self.last)) if self.settings.log1p else self.last
        logging.getLogger("cmdstanpy").setLevel(logging.WARNING)
        pandas, model = library("pandas"), library("prophet").Prophet()
        step, first = self.settings.step, self._count - len(self.values)
        times = [self._at((first + index) * step) for index in range(len(self.values))]
        model.fit(pandas.DataFrame({"ds": times, "y": self.values}))
        to_come = self._at(self._count if self.settings.old else self._count * step)
        return self.settings.back(float(model.predict(pandas.DataFrame({"ds": [to_come]}))["yhat"].iloc[0]))

    def _at(self, seconds: float) -> datetime:
        return datetime(2024, 1, 1) + timedelta(seconds=seconds)


def library(name: str, extra: str = "forecast", what: str = "") -> Any:
    """The module *name* of an *extra* that *what* needs; raises MissingExtra without it."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(extra, what or f"a forecast by {name}") from None


#: Forecasts by the names that Dynamo has for them.
FORECASTS: dict[str, Callable[[ForecastSettings], Forecast]] = {
    "constant": Constant, "arima": Arima, "kalman": Kalman, "prophet": Prophet}


@define(kw_only=True)
class PredictorOptions:
    """The options of both planners that are about their predictor, called as there."""

    load_predictor: str = field(default="arima", validator=in_(tuple(FORECASTS)))
    load_predictor_log1p: bool = False
    prophet_window_size: int = field(default=50, validator=gt(0))
    kalman_q_level: float = field(default=1.0, validator=ge(0))
    kalman_q_trend: float = field(default=0.1, validator=ge(0))
    kalman_r: float = field(default=10.0, validator=ge(0))

    def forecast_settings(self, step: float, min_points: int = _LEAST, old: bool = False) -> ForecastSettings:
        """The settings of forecasts of a value each *step* seconds."""
        return ForecastSettings(self.load_predictor_log1p, self.kalman_q_level, self.kalman_q_trend, self.kalman_r,
                                min_points, window=self.prophet_window_size, step=step, old=old)

"""All routers on one trace: the same requests at the same times, and how much longer each waits than under the best.

`RoutersPlan` says which routers run, with signals of which age; a `RouterComparison` ranks them, in a table and a
figure.  Two numbers tell routers apart that no run's summary has: the engines' imbalance, and *regret*, which is how
much longer a request waits than in the run of the same requests whose router sees the true state of all engines.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import Factory, define, evolve, field, frozen

from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.results.history import History
from ksim.results.numbers import DRAWN_OF_ROUTERS, OF_ROUTERS, number_of
from ksim.results.steps import Floats, Ints, sums
from ksim.scenario.scenario import Scenario, pieces, setting
from ksim.simulation.fleet import Fleet
from ksim.study.experiment import Outcome, attempt
from ksim.study.grid import Settings, SettingValues, value_text
from ksim.study.rows import RunRow, SweepPoint
from ksim.study.sweep import Sweep, SweepPlan
from ksim.study.workers import PROCESSES, Where
from ksim.views.result import Result
from ksim.views.tables import Table, as_text, notebook
from ksim.views.wording import UNLIMITED, number, written

if TYPE_CHECKING:
    from ksim.views.figures import Picture
    from ksim.views.figures.studies import Dot

#: The scenario's key of a router of engines, and that of one of pairs; each is the name of a folder of plug-ins.
ROUTER, PAIR_ROUTER = "router", "pair_router"
#: The router that sees the true state of every engine.
OMNISCIENT = "omniscient"
FLAG = "--routers"


def key_of(scenario: Scenario) -> str:
    """The key by which *scenario* names its router; raises ConfigError where there is one engine to choose from."""
    fleet = Fleet.of(scenario)
    if fleet.engines < 2:
        raise ConfigError("serve.data_parallel_size", "is 1, and a router needs several engines to choose from; set it"
                                                      " to more, or add pools")
    return PAIR_ROUTER if fleet.splits else ROUTER


def yardstick(key: str) -> Choice:
    """The router that others are held against."""
    if key == ROUTER or OMNISCIENT in catalog.names(_folder(key)):
        return Choice(OMNISCIENT)
    return Choice("each_side", {"prefill": OMNISCIENT, "decode": OMNISCIENT})


def is_yardstick(settings: Mapping[str, Any]) -> bool:
    """Whether the others of a comparison are held against the router of these *settings*."""
    key = ROUTER if ROUTER in settings else PAIR_ROUTER
    return bool(settings.get(key) == plain(yardstick(key)))


def candidates(scenario: Scenario, key: str, texts: Sequence[str] = ()) -> list[Choice]:
    """The routers that *texts* name, or all that fit, the yardstick first.  Raises ConfigError and UnknownName.

    A name without options has those of the scenario, if it is the scenario's own router.
    """
    own = Choice.of(scenario.pair_router or "" if key == PAIR_ROUTER else scenario.router)
    named = [parsed(text) for text in texts] or [Choice(name) for name in _fitting(scenario, key)]
    chosen = [own if choice == Choice(own.name) else choice for choice in named]
    labels = [label(plain(choice)) for choice in chosen]
    if twice := sorted({name for name in labels if labels.count(name) > 1}):
        raise ConfigError(FLAG, f"{twice[0]} comes twice")
    best = yardstick(key)
    return [best, *(choice for choice in chosen if choice != best)]


def listed(text: str, flag: str = FLAG) -> list[str]:
    """The texts of *flag*: those between commas that are not in quotes or brackets; raises ConfigError."""
    texts = [piece.strip() for piece in pieces(flag, ROUTER, text)]
    if not all(texts):
        raise ConfigError(flag, f"expected names with commas between, not {text!r}")
    return texts


def parsed(text: str) -> Choice:
    """The router that ``name``, ``name:option=value:option=value`` or ``package.module:Class`` means."""
    name, *options = _parts(text)
    return Choice(name, dict(setting(option) for option in options))


def label(value: str | Mapping[str, Any]) -> str:
    """A router's setting as `parsed` reads it."""
    if isinstance(value, str):
        return value
    return ":".join([value["name"], *(f"{key}={value_text(item)}" for key, item in value.items() if key != "name")])


def reads_stale(key: str, choice: Choice) -> bool:
    """Whether what the router *choice* sees of engines has an age; True for one that cannot be built."""
    try:
        signals = getattr(plugin(_folder(key), choice), "signals", _AGED)
    except Exception:  # the run will say it
        return True
    return not _AGED.isdisjoint(signals)


#: Signals that come from engines, by scrapes and events.
_AGED = frozenset({"metrics", "kv_events"})


def _fitting(scenario: Scenario, key: str) -> Iterator[str]:
    """All routers but those that do nothing of their own in *scenario*."""
    adapters = any(deployment.serve.enable_lora for deployment in Fleet.of(scenario).deployments)
    yield from (name for name in catalog.names(_folder(key)) if adapters or name != "lora_affinity")


def _folder(key: str) -> str:
    return f"cluster.{key}s"


def _parts(text: str) -> Iterator[str]:
    """The name, and each option; colons that no option follows belong to what is before them."""
    part = ""
    for piece in text.split(":"):
        before, equals, _ = piece.partition("=")
        if part and equals and before.strip().isidentifier():
            yield part
            part = piece
        else:
            part = f"{part}:{piece}" if part else piece
    yield part


@frozen(eq=False)
class Waits:
    """The wait of each request of a run for its first token (TTFT) and its last (`e2e`), in seconds.

    Requests are in the order of their ids; those without a token have nan.
    """

    ids: Ints
    ttft: Floats
    e2e: Floats = field(default=Factory(lambda self: self.ttft, takes_self=True))

    @classmethod
    def of(cls, result: Result) -> "Waits":
        requests = result.history.requests
        order = np.argsort(requests.ids, kind="stable")
        return cls(requests.ids[order], requests.ttft[order], requests.e2e[order])

    def regret(self, best: "Waits", until: str = "ttft") -> Floats:
        """The seconds that each request waits longer than with the *best* router, of requests that both runs served."""
        _, own, others = np.intersect1d(self.ids, best.ids, assume_unique=True, return_indices=True)
        longer: Floats = getattr(self, until)[own] - getattr(best, until)[others]
        return longer[~np.isnan(longer)]


#: The names of regrets, by what is waited for.
REGRETS = {"ttft": "regret", "e2e": "latency_regret"}


def regrets(own: Waits, best: Waits | None) -> dict[str, float | None]:
    """The mean regrets and their 99th percentiles in ms; None where nothing is known of the *best* router."""
    numbers: dict[str, float | None] = {}
    for until, name in REGRETS.items():
        longer = own.regret(best, until) if best is not None else np.zeros(0)
        numbers[f"mean_{name}_ms"] = 1e3 * float(longer.mean()) if len(longer) else None
        numbers[f"p99_{name}_ms"] = 1e3 * float(np.percentile(longer, 99)) if len(longer) else None
    return numbers


def imbalance(history: History) -> dict[str, float | None]:
    """The imbalance of engines: of the tokens that each computes, in the pool where they are most unequal.

    That is their standard deviation over their mean (coefficient of variation), and the largest over their mean.  Both
    are None where no pool has two engines.  Tokens that a cache holds are not computed.
    """
    pools = [tokens for tokens in _by_pool(history) if len(tokens) > 1 and tokens.any()]
    ends = [(float(tokens.std() / tokens.mean()), float(tokens.max() / tokens.mean())) for tokens in pools]
    spread, most = max(ends, default=(None, None))
    return {"engine_tokens_cv": spread, "engine_tokens_max_over_mean": most}


def _by_pool(history: History) -> Iterator[Floats]:
    tokens = sums(history.steps.engine, history.steps.tokens, len(history.engines))
    for pool in np.unique(history.pool):
        yield tokens[history.pool == pool]


def _best(scenario: Scenario, row: RunRow) -> tuple[Outcome, Waits | None]:
    """The outcome of a run with the best router, and the waits that others of its seed are held against."""
    ended, result = attempt(scenario, row.changes)
    if result is None:
        return ended, None
    waits = Waits.of(result)
    return _with(ended, imbalance(result.history) | regrets(waits, waits)), waits


def _held_against(best: Mapping[int, Waits], scenario: Scenario, row: RunRow) -> Outcome:
    """The outcome of another run, held against the *best* of its seed."""
    ended, result = attempt(scenario, row.changes)
    if result is None:
        return ended
    return _with(ended, imbalance(result.history) | regrets(Waits.of(result), best.get(row.seed)))


def _with(ended: Outcome, more: Mapping[str, float | None]) -> Outcome:
    return evolve(ended, summary={**(ended.summary or {}), **more})


#: The scenario's keys for the age of what routers see: how often metrics are scraped, and how late all signals arrive.
STALENESS, DELAY = "signals.scrape_interval", "signals.delay"


@frozen
class RoutersPlan(SweepPlan):
    """A sweep over the router, under the key that the scenario has for it, and the age of its signals.

    Metrics of some age are scraped as often, and they and KV events arrive as late.  Routers that see nothing with an
    age are run once, and not at each age.
    """

    kind: ClassVar[str] = "routers"
    #: The settings of routers for which the age counts.
    aged: Sequence[Any] = ()

    @classmethod
    def of(cls, scenario: Scenario, routers: Sequence[str] = (), staleness: Sequence[Any] = (), seeds: int = 1
           ) -> "RoutersPlan":
        """The comparison of these *routers*, or of all that there are; raises ConfigError and UnknownName."""
        if seeds < 1:
            raise ConfigError("--seeds", f"expected at least 1, not {seeds}")
        key = key_of(scenario)
        chosen = candidates(scenario, key, routers)
        axes = [SettingValues(key, tuple(plain(choice) for choice in chosen))]
        axes += [SettingValues(STALENESS, tuple(staleness))] if staleness else []
        return cls(scenario, tuple(axes), repeat=seeds,
                   aged=[plain(choice) for choice in chosen if reads_stale(key, choice)])

    @property
    def key(self) -> str:
        """The key of the router: `router` or `pair_router`."""
        return self.axes[0].key

    @property
    def yardstick(self) -> Any:
        """The setting of the router that others are held against."""
        return plain(yardstick(self.key))

    @property
    def points(self) -> list[Settings]:
        points: list[Settings] = []
        for settings in super().points:
            if settings[self.key] in self.aged:
                points.append({**settings, DELAY: settings[STALENESS]} if STALENESS in settings else settings)
            elif (alone := {self.key: settings[self.key]}) not in points:
                points.append(alone)
        return points

    @property
    def yardsticks(self) -> list[RunRow]:
        """The runs that others are held against, one for each seed."""
        return [row for row in self.rows if row.settings[self.key] == self.yardstick]

    def run(self, rows: Sequence[RunRow], keep: Callable[[RunRow], None], where: Where) -> None:
        """Compute each of *rows*: first those with the best router, then others, each held against the one of its seed.

        Runs with the best router that others need are run again where *rows* lack them, and not kept.
        """
        asked, best = {row.key for row in rows}, dict[int, Waits]()
        first = [row for row in self.yardsticks if any(row.seed == other.seed for other in rows)]
        then = [row for row in rows if row not in first]
        with where.workers(most=len(rows)) as pool:
            for number, (ended, waits) in pool.run(partial(_best, self.scenario), first):
                row = first[number]
                if waits is not None:
                    best[row.seed] = waits
                if row.key in asked:
                    keep(row.ended(ended))
            for number, ended in pool.run(partial(_held_against, best, self.scenario), then):
                keep(then[number].ended(ended))


def ages(text: str) -> list[Any]:
    """The values of ``--staleness``; raises ConfigError."""
    return list(SettingValues.parse(f"{STALENESS}={text}", "--staleness").values)


#: The columns of the table, by the numbers that they show, times in ms; those that no run has are left out.
COLUMNS = {key: number_of(key).title.removesuffix(", ms") for key in OF_ROUTERS}
#: The age of what a router sees that goes by nothing that can be late.
NO_AGE = "-"
_GO = ("goes", "go")
#: The regret by which routers are ranked, as `omniscient` minimises the time to the last token; else that to the first.
_RANKS = ("mean_latency_regret_ms", "mean_regret_ms")
#: The numbers of which the table shows intervals, too.
_SURE = ("p90_ttft_ms", *_RANKS)


def router_of(point: SweepPoint) -> str:
    """The router of *point*, as ``--routers`` takes it."""
    return label(point.settings.get(ROUTER) or point.settings[PAIR_ROUTER])


def rank_key(points: Sequence[SweepPoint]) -> str:
    """The number by which *points* are ranked, one for all."""
    return next((key for key in _RANKS if any(point.value(key) is not None for point in points)), _RANKS[0])


def ranked(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Those of *points* that went well: routers by their `rank_key` with the first signals, each by its signals."""
    good = [point for point in points if point.outcome.summary is not None]
    key, regret = rank_key(good), dict[str, float]()
    for point in good:
        value = point.value(key)
        regret.setdefault(router_of(point), math.inf if value is None else value)
    return sorted(good, key=lambda point: (regret[router_of(point)], router_of(point), point.number))


def shown(points: Sequence[SweepPoint]) -> Table:
    """A line for each of *points*."""
    keys = shown_keys(points)
    aged = any(STALENESS in point.settings for point in points)
    rows = [(router_of(point), *([age(point)] if aged else []), *(cell(point, key) for key in keys))
            for point in points]
    return Table.of("router", *(["age"] if aged else []), *(f">{COLUMNS[key]}" for key in keys), rows=rows,
                    hide=[*reversed(COLUMNS.values())][:-1])


def shown_keys(points: Sequence[SweepPoint]) -> list[str]:
    """The numbers that the table shows: those of `COLUMNS` that any of *points* has."""
    return [key for key in COLUMNS if any(point.value(key) is not None for point in points)]


def age(point: SweepPoint) -> str:
    """The age of what its router sees; a dash where it has none, or the scenario says it."""
    return value_text(point.settings.get(STALENESS, NO_AGE))


def age_title(name: str) -> str:
    """The age *name* as legends have it."""
    return "never old" if name == NO_AGE else name


def lanes(ages: Sequence[str]) -> dict[str, float]:
    """The offset of the dots of each age below the line of their router, so that equal ones stand side by side."""
    aged = [name for name in ages if name != NO_AGE]
    step = 0.6 / max(len(aged), 1)
    return {NO_AGE: 0.0} | {name: step * (place - (len(aged) - 1) / 2) for place, name in enumerate(aged)}


def explained(points: Sequence[SweepPoint]) -> Iterator[str]:
    """Explanations of surprises in the table of *points*: regrets below 0, and routers that are alike at all ages."""
    if any((point.value(key) or 0.0) < 0 for point in points for key in _RANKS):
        yield (f"a regret below 0: requests waited less than with {OMNISCIENT}, which minimises the time to the last"
               " tokens of the requests that it knows, not to the first, and knows none that come later")
    by_router: dict[str, list[SweepPoint]] = {}
    for point in points:
        by_router.setdefault(router_of(point), []).append(point)
    ageless = [name for name, own in by_router.items() if age(own[0]) == NO_AGE]
    if len(ageless) < len(by_router):
        if ageless:
            yield f"age {NO_AGE}: what {', '.join(ageless)} {_GO[len(ageless) > 1]} by is never old, so one run is all"
        keys = shown_keys(points)
        for name, own in by_router.items():
            if len(own) > 1 and len({tuple(point.value(key) for key in keys) for point in own}) == 1:
                yield f"{name} is the same at all ages: it saw older signals, but chose the same engines"


def notes(points: Sequence[SweepPoint]) -> Iterator[str]:
    """The number of runs, and the routers that cannot run, each reason once."""
    runs, seeds = sum(len(point.rows) for point in points), max((len(point.rows) for point in points), default=0)
    more = f", {seeds} seeds of each; ± is half a 95 % interval" if seeds > 1 else ""
    yield f"{runs:,} runs of {len({router_of(point) for point in points}):,} routers{more}; times in ms"
    for name, problem in dict.fromkeys((router_of(point), point.outcome.problem) for point in points
                                       if point.outcome.summary is None):
        yield f"{name} did not run: {problem}"


def cell(point: SweepPoint, key: str) -> str:
    """A number of *point*, some with half their intervals."""
    value = point.value(key)
    spread = point.half_width(key) if value is not None and key in _SURE else math.nan
    return written(number_of(key), value) + ("" if math.isnan(spread) else f" ± {number(spread)}")


#: The numbers of a figure, a panel each, those first that decide; those that are the same everywhere are left out.
PANELS = {key: number_of(key).title for key in DRAWN_OF_ROUTERS} | {"prefix_cache_hit_rate": "GPU hit rate"}


def picture(title: str, points: Sequence[SweepPoint]) -> "Picture":
    """A line for each router, a panel for each number, and a dot for each age of signals."""
    from ksim.views.figures.studies import routers_chart

    panels = {name: dots_of(points, key) for key, name in PANELS.items()}
    return routers_chart(title, {name: dots for name, dots in panels.items() if dots})


def dots_of(points: Sequence[SweepPoint], key: str) -> list["Dot"]:
    """A dot for each of *points* that have this number; intervals end where values do: times at 0, and shares at 1."""
    from ksim.views.figures.studies import Dot

    beside = lanes(list(dict.fromkeys(map(age, points))))
    least, most = -math.inf if "regret" in key else 0.0, 1.0 if key.endswith("hit_rate") else math.inf
    measured = [(point, float(value), point.half_width(key)) for point in points
                if (value := point.value(key)) is not None]
    return [Dot(router_of(point), age_title(age(point)), value, math.nan if math.isnan(width) else max(
        least, value - width), math.nan if math.isnan(width) else min(most, value + width), beside[age(point)])
        for point, value, width in measured]


@define(eq=False, slots=False)
class RouterComparison(Sweep):
    """The `rows` of a comparison, and what they say together; the router with the least mean e2e regret comes first."""

    @property
    def ranking(self) -> list[SweepPoint]:
        """The points that went well: routers by their e2e regret with the first signals, each by its signals."""
        return ranked(self.points)

    @property
    def shown(self) -> Table:
        """The table of routers: a line for each router and age of signals."""
        return shown(self.ranking)

    @property
    def notes(self) -> list[str]:
        """The number of runs, and the routers that cannot run, with the reason."""
        return [*notes(self.points)]

    @property
    def explanations(self) -> list[str]:
        """Explanations of surprises in the table: regrets below 0, and routers that are alike at all ages."""
        return [*explained(self.ranking)]

    @property
    def text(self) -> str:
        """The table as plain text."""
        return as_text(self.shown, UNLIMITED).strip()

    def records(self) -> list[dict[str, Any]]:
        """A table of all points: router, age of signals, means and half widths of all numbers; None if unknown."""
        return [{"router": router_of(point), "age": age(point),
                 **{key: None if isinstance(value, float) and math.isnan(value) else value
                    for key, value in point.record().items() if key not in point.settings}} for point in self.points]

    def plot(self, *keys: Any, **more: Any) -> "Picture":
        """The figure of routers, side by side; with arguments, as `Sweep.plot`."""
        if keys or more:
            return super().plot(*keys, **more)
        return picture(self.title, self.ranking)

    def _repr_html_(self) -> str:
        return notebook(self.title, self.shown, *self.notes, *self.explanations)


def routers(scenario: Scenario | str | Path, routers: str | Sequence[str] = (), staleness: Sequence[Any] = (),
            seeds: int = 1, jobs: int | None = None, on: str = PROCESSES, output: Path | str | None = None,
            resume: bool = False, force: bool = False, address: str | None = None) -> RouterComparison:
    """Run *scenario* with each of *routers*, by default all that there are, under the same requests.

    A router is "name" or "name:option=value".  Those that act on what they see of engines run once for each
    *staleness*, such as ``[0, "50ms"]``, by default that of the scenario, and all run once for each of so many *seeds*.
    Each run is held against that of its seed in which `omniscient` routes.  Runs are computed in *jobs* processes, by
    default one per CPU, or *on* "ray".  With *output*, every run is kept there as it ends, and *resume* goes on with
    what is there.  A router that cannot run is a row with its problem.  Raises KsimError for what no run can have.
    """
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.read(scenario)
    plan = RoutersPlan.of(scenario, [routers] if isinstance(routers, str) else routers, staleness, seeds)
    where, path = Where(jobs, on, address), None if output is None else Path(output)
    plan.check(path, resume, force)
    title = f"Routers compared: {Path(scenario.model).name}"
    with plan.kept(path, title, resume, force) as study:
        plan.carry_out(study, where)
    return RouterComparison.of(title, study)

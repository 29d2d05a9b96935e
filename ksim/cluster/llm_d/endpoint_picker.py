"""llm-d's endpoint picker: it runs profiles, and tells parts what was chosen and what came of it.

Profile handlers of llm-d that split requests between an engine that prefills and one that decodes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import Factory, define, evolve, field, frozen
from attrs.validators import in_

from ksim.cluster.llm_d.cycle import Chance, Cycle, SchedulerProfile
from ksim.cluster.routers import V
from ksim.flow.request import Request

__all__ = ["ByEndpointPicker", "EndpointPicker", "Split", "HANDLERS"]


@frozen
class Split:
    """How requests are split: by two profiles, and a decider, without which none is split.

    Source: llm-d-router, scheduling/profilehandler/disagg/disagg_profile_handler.go (October 2026), decode first.
    """

    decode: str = "decode"
    prefill: str = "prefill"
    decider: Any = None


@define(eq=False)
class EndpointPicker:
    """Made of `parts`, of which `producers` look at engines before profiles run, in their order.

    `scores` are those of the engines given last, with NaN where a filter left one out.  It has `on_first_token` and
    `on_end` if a part wants to be told.
    """

    profiles: Mapping[str, SchedulerProfile]
    producers: Sequence[Any]
    parts: Sequence[Any]
    split: Split | None = None
    chance: Chance = field(factory=lambda: Chance(0))
    scores: Sequence[float] = field(default=(), init=False)
    refusal: str = field(default="", init=False)
    _sent: Sequence[Callable[..., None]] = field(init=False)
    on_first_token: Callable[[Request, int, float], None] = field(init=False)
    on_end: Callable[[Request, int, float], None] = field(init=False)
    _gone: Sequence[Callable[..., None]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sent, self._gone = self._hooks("sent"), self._hooks("gone")
        if hooks := self._hooks("first_token"):
            self.on_first_token = _teller(hooks)
        if hooks := self._hooks("ended"):
            self.on_end = _teller(hooks)

    def _hooks(self, name: str) -> list[Callable[..., None]]:
        return [getattr(part, name) for part in self.parts if hasattr(part, name)]

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that its parts go by."""
        named = {signal for part in self.parts for signal in getattr(part, "signals", ())}
        if hasattr(self, "on_end") or hasattr(self, "on_first_token"):
            named.add("books")
        return tuple(signal for signal in ("books", "metrics", "kv_events", "truth") if signal in named)

    def on_gone(self, number: int) -> None:
        """Tell the parts that engine *number* has gone."""
        for hook in self._gone:
            hook(number)

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V | None:
        """The engine for a request that is not split; none, and a `refusal`, if filters leave none."""
        cycle = self._look(request, engines, now)
        (name, profile), = self.profiles.items()
        chosen = self._run(profile, cycle, engines)
        if chosen is None:
            self.refusal = f"the filters of profile {name!r} leave no engine"
            return None
        self._tell(cycle, chosen.number, name)
        return chosen

    def choose_pair(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
                    now: float) -> tuple[V | None, V]:
        """The engines that prefill and decode a request; None if the second does both.

        Where filters leave none of a side, which llm-d answers with an error, all of that side come into question.
        """
        assert self.split is not None, "only a picker that splits chooses pairs"
        cycle = self._look(request, [*prefill_engines, *decode_engines], now)
        decode = self._run_anyway(self.profiles[self.split.decode], cycle, decode_engines)
        alone = decode.role == "both" and not (self.split.decider and self.split.decider.splits(cycle, decode))
        scores, prefill = self.scores, None
        if not alone:
            prefill = self._run_anyway(self.profiles[self.split.prefill], cycle, prefill_engines)
            self.scores = [*self.scores, *scores]
            self._tell(cycle, prefill.number, "prefill")
        else:
            self.scores = [*([float("nan")] * len(prefill_engines)), *scores]
        self._tell(cycle, decode.number, "decode")
        return prefill, decode

    def _look(self, request: Request, engines: Sequence[V], now: float) -> Cycle:
        cycle = Cycle(request, now, self.chance)
        for producer in self.producers:
            producer.look(cycle, engines)
        return cycle

    def _run_anyway(self, profile: SchedulerProfile, cycle: Cycle, engines: Sequence[V]) -> V:
        chosen = self._run(profile, cycle, engines)
        return chosen if chosen is not None else self._run_anyway(evolve(profile, filters=()), cycle, engines)

    def _run(self, profile: SchedulerProfile, cycle: Cycle, engines: Sequence[V]) -> V | None:
        chosen, scored, scores = profile.run(cycle, engines)
        if len(scored) < len(engines):
            of = {engine.number: score for engine, score in zip(scored, scores, strict=True)}
            scores = [of.get(engine.number, float("nan")) for engine in engines]
        self.scores = scores
        return chosen

    def _tell(self, cycle: Cycle, number: int, profile: str) -> None:
        for tell in self._sent:
            tell(cycle, number, profile)


def _teller(hooks: Sequence[Callable[..., None]]) -> Callable[[Request, int, float], None]:
    """A function that calls all of *hooks* with a request, an engine and a time."""
    def tell(request: Request, number: int, now: float) -> None:
        for hook in hooks:
            hook(request, number)
    return tell


class ByEndpointPicker:
    """The attributes of a router whose `_picker` chooses."""

    _picker: EndpointPicker

    @property
    def signals(self) -> tuple[str, ...]:
        return self._picker.signals

    @property
    def scores(self) -> Sequence[float]:
        return self._picker.scores

    @property
    def refusal(self) -> str:
        return self._picker.refusal

    @property
    def on_first_token(self) -> Callable[[Request, int, float], None]:
        """The hook for first tokens, if any part has one: else there is no such attribute."""
        return self._picker.on_first_token

    @property
    def on_end(self) -> Callable[[Request, int, float], None]:
        return self._picker.on_end

    def on_gone(self, number: int) -> None:
        self._picker.on_gone(number)


@frozen
class DisaggProfileHandler:
    """Source: llm-d-router, scheduling/profilehandler/disagg/disagg_profile_handler.go (October 2026)."""

    profiles: Mapping[str, str] = Factory(dict)
    deciders: Mapping[str, str] = Factory(dict)
    decider_plugin_name: str = ""  # until April 2026
    stage_order: str = field(default="decode-first", validator=in_(("decode-first",)))

    @property
    def decode_name(self) -> str:
        return self.profiles.get("decode") or "decode"

    @property
    def prefill_name(self) -> str:
        return self.profiles.get("prefill") or "prefill"

    @property
    def decider_name(self) -> str:
        return self.deciders.get("prefill") or self.decider_plugin_name


@frozen
class PdProfileHandler:
    """Source: llm-d-router, scheduling/profilehandler/disagg/pd_profile_handler.go (May 2026)."""

    decode_profile: str = "decode"
    prefill_profile: str = "prefill"
    decider_plugin_name: str = "prefix-based-pd-decider"
    prefix_match_info_producer_name: str = ""
    prefix_plugin_type: str = ""  # without effect, in llm-d too
    prefix_plugin_name: str = ""
    primary_port: int = 0
    threshold: int = 0
    hash_block_size: int = 0

    @property
    def decode_name(self) -> str:
        return self.decode_profile

    @property
    def prefill_name(self) -> str:
        return self.prefill_profile

    @property
    def decider_name(self) -> str:
        return self.decider_plugin_name


HANDLERS: Mapping[str, type[Any]] = {"disagg-profile-handler": DisaggProfileHandler,
                                     "pd-profile-handler": PdProfileHandler}

"""Profile handlers of llm-d that split requests between an engine that prefills and one that decodes."""

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen
from attrs.validators import in_

__all__ = ["HANDLERS"]


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

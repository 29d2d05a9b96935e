"""A Hugging Face ``config.json``, the keys that an architecture has read of it, and those that many families share.

Shared keys are of sizes, lengths, windows and the kinds of layers.  Keys that change neither kernels nor weights are
in ksim/data/config_keys.toml.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from attrs import field, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError

__all__ = ["MODELS", "neutral", "MOST", "Config", "FULL", "SLIDING", "late_windows", "layer_types", "max_length",
           "only", "rotary", "sizes", "sparse", "text", "windows"]


#: In place of a list of values: whatever the key says.
ANY = (...,)


@cache
def _neutral() -> Mapping[str, Mapping[str, tuple[Any, ...]]]:
    """Keys that change neither kernels nor weights, and the values for which that is so, by the table with the keys.

    The table "neutral" is the config itself.
    """
    groups = catalog.read(catalog.DATA / "config_keys.toml")
    tables: dict[str, dict[str, tuple[Any, ...]]] = {name: {
        key: tuple(group["values"]) if "values" in group else ANY for group in listed for key in group["keys"].split()}
        for name, listed in groups.items()}
    vision = {key: tables["neutral"][key] for key in tables["as_above"]} | tables["vision_config"]
    return {**tables, "vision_config": vision, "rope_parameters": tables["rope_scaling"]}


#: Tables inside that are configs of models: a language model's, beside an encoder's.
MODELS = ("", "text_config", "llm_config", "thinker_config")
#: Ends of keys that name tokens by their numbers.
TOKENS = ("_token_id", "_token_ids", "_token_index", "_tokens_id", "_token")


def neutral(place: str, key: str, value: Any) -> bool:
    """Whether *key* with *value*, in the table under *place*, changes neither kernels nor weights."""
    if place in MODELS and key.endswith(TOKENS):
        return True
    allowed = _neutral().get("neutral" if place in MODELS else place, {}).get(key, ())
    return allowed == ANY or value in allowed


T = TypeVar("T", int, bool, str, list[Any], dict[str, Any])
_WORDS = {int: "a whole number", bool: "true or false", str: "a text", list: "a list", dict: "a table"}

#: No model has larger numbers than these, and they would take for ever to work with.
MOST = 2**31
_MOST = {"num_hidden_layers": 2000, "num_experts": 2**16, "n_routed_experts": 2**16, "num_local_experts": 2**16}


@frozen
class Config:
    """A Hugging Face ``config.json`` or, with the key as `place`, a table in it; `name` is for messages.

    It knows which keys its methods were asked for, so that `check_all_read` can refuse the others.
    """

    name: str
    table: Mapping[str, Any]
    place: str = ""
    _read: set[str] = field(factory=set, init=False, eq=False, repr=False)
    _parts: dict[str, "Config"] = field(factory=dict, init=False, eq=False, repr=False)

    def value(self, key: str) -> Any:
        """The value of *key*, of any type; None where it is absent."""
        self._read.add(key)
        return self.table.get(key)

    def need(self, key: str, default: int = 0) -> int:
        """The positive whole number under *key*, or *default* where it is absent or null.

        Raises ConfigError for another value, for one larger than any model has, or if there is neither value nor
        default.
        """
        value, most = self.get(key, default), _MOST.get(key, MOST)
        if value < 1:
            problem = "is missing" if self.table.get(key) is None else f"expected a positive whole number, not {value}"
            raise ConfigError(f"{self.name}: {key}", problem)
        if value > most:
            raise ConfigError(f"{self.name}: {key}", f"{value} is more than any model has; the most is {most}")
        return value

    def count(self, key: str) -> int:
        """The whole number under *key*, which may be 0 and is where it is absent; raises ConfigError for a negative."""
        if (value := self.get(key, 0)) < 0:
            raise ConfigError(f"{self.name}: {key}", f"expected a whole number from 0, not {value}")
        return value

    def factor(self, key: str) -> float:
        """The positive number under *key*, 1 where it is absent; raises ConfigError for another value."""
        value = self.value(key)
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
            raise ConfigError(f"{self.name}: {key}", f"expected a positive number, not {value!r}")
        return float(value)

    def part(self, key: str) -> "Config":
        """The table under *key*, empty where it is absent; raises ConfigError for another value."""
        if key not in self._parts:
            self._parts[key] = Config(f"{self.name}: {key}", self.get(key, {}),
                                      key if self.place in MODELS else self.place)
        return self._parts[key]

    def joined(self, key: str, outside: Collection[str]) -> "Config":
        """The table under *key* with those of the keys *outside* it that it lacks; `Config` itself without one."""
        if not self.get(key, {}):
            return self
        if key not in self._parts:
            beside = {name: self.value(name) for name in outside if name in self.table}
            self._parts[key] = Config(self.name, {**beside, **self.table[key]})
        return self._parts[key]

    def under(self, names: Mapping[str, str]) -> "Config":
        """This config with other *names* for some keys: those that other families have."""
        return self.instead({names.get(key, key): value for key, value in self.table.items()})

    def instead(self, table: Mapping[str, Any]) -> "Config":
        """A config with the content *table*, which says the same in other words and is read in place of this one."""
        copy = self._parts[""] = Config(self.name, table, self.place)
        copy._read.update(self._read)
        self._read.update(self.table)
        return copy

    def texts(self, key: str) -> list[str]:
        """The list of texts under *key*, empty where it is absent; raises ConfigError for another value."""
        texts = self.get(key, [])
        if strangers := [value for value in texts if not isinstance(value, str)]:
            raise ConfigError(f"{self.name}: {key}", f"expected texts, not {strangers[0]!r}")
        return texts

    def get(self, key: str, default: T) -> T:
        """The value under *key*, or *default* where it is absent or null; raises ConfigError for another type."""
        value = self.value(key)
        if value is None:
            return default
        if type(value) is not type(default):
            raise ConfigError(f"{self.name}: {key}", f"expected {_WORDS[type(default)]}, not {value!r}")
        return value

    def check_all_read(self) -> None:
        """Raise ConfigError that names all keys that no method was asked for and whose values may mean something.

        A key whose value is null says nothing; `ksim.compute.config` lists those without meaning for cost.
        """
        unread = list(self._unread())
        if len(unread) == 1:
            (place, value, close), = unread
            raise ConfigError(place, f"ksim does not know what {_short(value)} changes in a model of this family"
                              + (f"; did you mean {close!r}?" if close else "")
                              + "; where it changes neither kernels nor weights, leave it out of a copy, else write a"
                                " family that reads it (docs/models.md, What a config may say)")
        if unread:
            listed = ", ".join(f"{place.removeprefix(self.name)[2:]} = {_short(value)}"
                               + (f" (did you mean {close!r}?)" if close else "") for place, value, close in unread)
            raise ConfigError(self.name, f"ksim does not know what {len(unread)} keys change in a model of this family:"
                                         f" {listed}; leave those that change neither kernels nor weights out of a"
                                         " copy, and write a family that reads the others (docs/models.md, What a"
                                         " config may say)")

    def _unread(self) -> Iterator[tuple[str, Any, str]]:
        """Keys that may mean something and were not read: where they are, what they say, and which one may be meant."""
        for key, value in self.table.items():
            if key not in self._read and value is not None and not neutral(self.place, key, value):
                close = get_close_matches(key, self._read, n=1, cutoff=0.85)
                yield f"{self.name}: {key}", value, close[0] if close else ""
        for part in self._parts.values():
            yield from part._unread()


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 40 else f"{written[:37]}..."


#: Scaled rotary embeddings whose `max_position_embeddings` is the stretched length already, as in vLLM.
STRETCHED = {"default", "llama3", "longrope", "mrope", "proportional", "su"}
#: Scaled rotary embeddings that stretch it by their `factor`.
STRETCHING = {"linear", "dynamic", "yarn"}
#: Keys of the language model that a multimodal config may have beside its `text_config`.
OUTSIDE = {"quantization_config", "tie_word_embeddings"}
#: Keys beside the language model's, of the parts that see and hear, which are left out.
OTHER_PARTS = (
    "vision_config", "audio_config", "projector_config", "media_placeholder_token_id", "vision_tower", "ignore_index",
    "vision_feature_layer", "vision_feature_select_strategy", "multimodal_projector_bias", "projector_hidden_act",
    "use_unified_vision_chunk", "video_placeholder", "spatial_merge_size", "mm_tokens_per_image")
#: What `layer_types` calls attention with a window and without.
SLIDING, FULL = "sliding_attention", "full_attention"


def sizes(config: Config) -> dict[str, int]:
    """The sizes of a transformer with grouped-query attention, by their usual names in config.json."""
    heads = config.need("num_attention_heads")
    kv_heads = config.need("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"{config.name}: num_key_value_heads", f"{kv_heads} does not divide {heads} attention heads")
    group, hidden = heads // kv_heads, config.need("hidden_size")
    if not config.value("head_dim") and hidden % heads:
        raise ConfigError(f"{config.name}: num_attention_heads", f"{heads} does not divide hidden_size = {hidden}, and"
                                                                 " there is no head_dim")
    return {
        "m": hidden, "V": config.need("vocab_size"), "g": 2,
        "F": config.need("intermediate_size", config.get("moe_intermediate_size", 0)),
        "K": kv_heads, "r": group, "i": group + 2, "l": 2 * group + 2, "h": config.need("head_dim", hidden // heads),
    }


def text(config: Config) -> Config:
    """The part of a multimodal config that describes the language model, or else *config* itself."""
    for key in OTHER_PARTS:
        config.value(key)
    return config.joined("text_config", OUTSIDE)


def only(config: Config, **values: Any) -> None:
    """Raise ConfigError where *config* has another value under a key than the one that is modelled."""
    for key, modelled in values.items():
        if (value := config.get(key, modelled)) != modelled:
            raise ConfigError(f"{config.name}: {key}", f"{value!r} is not modelled, only {modelled!r}")


def max_length(config: Config) -> int:
    """The longest sequence in tokens; a scaled rotary embedding stretches it as in vLLM."""
    length = config.need("max_position_embeddings")
    parts = [config.part(key) for key in ("rope_scaling", "rope_parameters")]
    scaling = parts[config.value("rope_scaling") is None]
    for kind, other in ((FULL, SLIDING), ("compress", "main")):  # one for each type of layer; the first stretches
        if isinstance(scaling.table.get(kind), dict):
            scaling.part(other)
            scaling = scaling.part(kind)
            break
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in STRETCHED | STRETCHING:
        raise ConfigError(f"{scaling.name}: rope_type", f"{kind!r} is none of"
                                                        f" {', '.join(sorted(STRETCHED | STRETCHING))}")
    if kind in STRETCHED:
        return length
    if kind == "yarn":
        length = scaling.need("original_max_position_embeddings", length)
    return max(1, int(length * scaling.factor("factor")))


def windows(config: Config, sliding: Sequence[bool] = ()) -> list[int]:
    """The attention window of each layer in tokens, 0 for none.

    `layer_types` says which layers have the config's `sliding_window`, or else *sliding*; all of them if that is empty.
    """
    window = config.need("sliding_window") if config.value("sliding_window") else 0
    slides = sliding or [True] * config.need("num_hidden_layers")
    kinds = layer_types(config, [SLIDING if slide else FULL for slide in slides], (SLIDING, FULL))
    return [window if kind == SLIDING else 0 for kind in kinds]


def layer_types(config: Config, default: list[str], known: Sequence[str], key: str = "layer_types") -> list[str]:
    """The type of each layer under *key*, or *default*; raises ConfigError for a type that is not *known*."""
    kinds, layers = config.get(key, default), config.need("num_hidden_layers")
    if len(kinds) != layers or any(kind not in known for kind in kinds):
        raise ConfigError(f"{config.name}: {key}", f"expected {layers} times {' or '.join(known)}")
    return kinds


def rotary(config: Config) -> list[bool]:
    """Which layers have rotary embeddings: by `no_rope_layers`, where 1 means yes, or all but every fourth."""
    layers, every = config.need("num_hidden_layers"), config.need("no_rope_layer_interval", 4)
    says = config.get("no_rope_layers", []) or [int((layer + 1) % every != 0) for layer in range(layers)]
    if len(says) < layers:
        raise ConfigError(f"{config.name}: no_rope_layers", f"expected {layers} times 0 or 1")
    return [bool(each) for each in says[:layers]]


def late_windows(config: Config) -> list[bool]:
    """Which layers have a window by Qwen's settings: the last ones, and only with `use_sliding_window`."""
    some, first = config.get("use_sliding_window", False), config.get("max_window_layers", 28)
    return [some and layer >= first for layer in range(config.need("num_hidden_layers"))]


def sparse(config: Config) -> list[bool]:
    """Which layers have experts, by Qwen's settings: every few of them but for some that are named."""
    dense, every = config.get("mlp_only_layers", []), config.need("decoder_sparse_step", 1)
    return [layer not in dense and (layer + 1) % every == 0 for layer in range(config.need("num_hidden_layers"))]

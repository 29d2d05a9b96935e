"""How an engine decodes speculatively: vLLM's `SpeculativeConfig`, key by key."""

from collections.abc import Sequence
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import ge, gt, in_, le, optional

from ksim.foundation.config import Choice

#: The methods that ksim simulates.
METHODS = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
#: Names of models' own heads, all of which vLLM calls mtp (0.33, vllm/config/speculative.py: MTPModelTypes).
_MTP = (
    "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp",
    "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp",
    "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "kimi_k3_mtp",
    "pangu_ultra_moe_mtp", "step3p5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp", "inkling_mtp", "glm5_next_mtp",
)
_ALIASES = {**dict.fromkeys(_MTP, "mtp"), "[ngram]": "ngram", "ngram_gpu": "ngram"}
#: Methods of vLLM's that ksim knows nothing of.
_OTHERS = ("medusa", "mlp_speculator", "suffix", "dflash", "dspark", "extract_hidden_states", "custom_class")
#: Most tokens that vLLM's rejection sampler takes of a sequence (v1/sample/rejection_sampler.py: MAX_SPEC_LEN).
MOST_TOKENS = 128
SAMPLING = ("standard", "synthetic", "block")
_HOW = "set acceptance, such as {name = \"geometric\", rate = 0.8}, or vLLM's rejection_sample_method = 'synthetic'" \
       " with synthetic_acceptance_length"


def _method(name: str | None) -> str | None:
    return _ALIASES.get(name, name) if isinstance(name, str) else name


def _known(_: object, attribute: "Attribute[str | None]", value: str | None) -> None:
    if value in _OTHERS:
        raise ValueError(f"{attribute.name!r} = {value!r} is not simulated; choose one of {', '.join(METHODS)}")
    if value is not None and value not in METHODS:
        raise ValueError(f"{attribute.name!r} must be one of {', '.join(METHODS)}, not {value!r}")


def _tokens(_: object, attribute: "Attribute[int]", value: int) -> None:
    if value <= 0:
        raise ValueError(f"expected num_speculative_tokens to be greater than zero ({value}); leave speculative_config"
                         f" out for none")
    if value > MOST_TOKENS:
        raise ValueError(f"num_speculative_tokens = {value} is more than the {MOST_TOKENS} that vLLM's rejection"
                         f" sampler takes")


def _falling(_: object, attribute: "Attribute[tuple[float, ...] | None]", value: Sequence[float] | None) -> None:
    if value is not None and not falls(value):
        raise ValueError(f"{attribute.name} must be in [0, 1] and non-increasing, not {[*value]}")


def falls(rates: Sequence[float]) -> bool:
    """Whether *rates* may be chances that the first 1, 2, ... drafted tokens are all accepted."""
    return all(1.0 >= before >= rate >= 0.0 for before, rate in zip((1.0, *rates), rates, strict=False))


@frozen
class SpeculativeConfig:
    """What vLLM's flag ``--speculative-config`` takes (0.33, vllm/config/speculative.py), and how many drafted tokens
    are accepted.

    Keys about where weights and kernels come from are read, so that a deployment's own text is valid, and change
    nothing.
    """

    num_speculative_tokens: int = field(validator=_tokens)
    """Tokens that the drafter proposes for each sequence and step. Unit: tokens. Source: vLLM. Example: 3."""
    method: str | None = field(default=None, converter=_method, validator=_known)
    """The drafter: ngram, draft_model, eagle, eagle3 or mtp; vLLM's names for MTP heads of single models are accepted.
    Default: as vLLM tells from `model`. Source: vLLM. Example: "eagle3"."""
    model: str | None = None
    """The draft model or the head, by its catalogue name or config.json. Default: none for ngram; for mtp, the model's
    own head. Source: vLLM. Example: "llama-3.2-1b"."""
    acceptance: Choice | None = None
    """How many drafted tokens the model accepts. Default: vLLM's synthetic acceptance, which must be set instead.
    Names: scheduling.acceptances. Source: ksim. Example: {name = "geometric", rate = 0.8}."""
    match_rate: float = field(default=1.0, validator=(ge(0), le(1)))
    """Chance that an n-gram drafter finds what it looks up; otherwise it proposes nothing. Unit: share. Source: ksim.
    """
    rejection_sample_method: str = field(default="standard", validator=in_(SAMPLING))
    """How drafted tokens are verified; "synthetic" accepts them by the rates below. Source: vLLM."""
    synthetic_acceptance_rates: tuple[float, ...] | None = field(default=None, validator=_falling)
    """Chance for each position that it and all before it are accepted. Unit: share. Default: none. Source: vLLM.
    Example: [0.8, 0.6, 0.4]."""
    synthetic_acceptance_length: float | None = None
    """Mean tokens of a verification, the sampled one included. Unit: tokens. Default: none. Source: vLLM. Example:
    2.8."""
    draft_sample_method: str = field(default="greedy", validator=in_(("greedy", "probabilistic")))
    """How the drafter samples; "probabilistic" keeps its logits. Source: vLLM."""
    draft_tensor_parallel_size: int | None = field(default=None, validator=optional(gt(0)))
    """GPUs that share the drafter: 1, or as many as share the model. Unit: GPUs. Default: `tensor_parallel_size`.
    Source: vLLM. Example: 1."""
    quantization: str | None = None
    """Format of the drafter's weights. Default: as its config.json says; for mtp, the model's. Source: vLLM. Example:
    "fp8"."""
    kv_cache_dtype: str | None = None
    """Format of the drafter's KV cache. Default: the model's. Source: vLLM. Example: "fp8"."""
    prompt_lookup_max: int | None = field(default=None, validator=optional(gt(0)))
    """Longest n-gram that is looked up. Unit: tokens. Default: `prompt_lookup_min`, else 5. Source: vLLM. Example: 4.
    """
    prompt_lookup_min: int | None = field(default=None, validator=optional(gt(0)))
    """Shortest n-gram that is looked up. Unit: tokens. Default: `prompt_lookup_max`, else 5. Source: vLLM. Example: 2.
    """
    disable_eagle_block_drop: bool = False
    """Keep the last block of a prefix hit, and plain block keys, with a drafter that reads hidden states. Source: vLLM.
    """
    disable_lookahead_block_hashes: bool = False
    """Let block keys cover the tokens of the block alone; such a drafter then drops the last block of a prefix hit.
    Source: vLLM."""
    use_heterogeneous_vocab: bool = False
    """Let a draft model have another vocabulary. Source: vLLM."""
    max_model_len: int | None = field(default=None, validator=optional(gt(0)))
    """Longest context of the drafter; changes nothing. Unit: tokens. Default: the model's. Source: vLLM. Example:
    2048."""
    enforce_eager: bool | None = None
    """Run the drafter without CUDA graphs. Default: as the model. Source: vLLM. Example: true."""
    disable_padded_drafter_batch: bool = False
    """Give the drafter sequences of unequal lengths; changes nothing. Source: vLLM."""
    use_local_argmax_reduction: bool = False
    """Choose the drafter's tokens on each rank first; changes nothing. Source: vLLM."""
    parallel_drafting: bool = False
    """Draft all tokens in one pass; ksim knows false alone. Source: vLLM."""
    enable_adaptive_verification: bool = False
    """Verify fewer tokens where the drafter is unsure; vLLM has it for DSpark alone. Source: vLLM."""
    revision: str | None = None
    """Version of the drafter's weights; changes nothing. Default: none. Source: vLLM. Example: "main"."""
    code_revision: str | None = None
    """Version of the drafter's code; changes nothing. Default: none. Source: vLLM. Example: "main"."""
    moe_backend: str | None = None
    """Kernels for the drafter's experts; changes nothing. Default: the model's. Source: vLLM. Example: "triton"."""
    attention_backend: str | None = None
    """Kernels for the drafter's attention; changes nothing. Default: the model's. Source: vLLM. Example:
    "FLASH_ATTN"."""
    tensor_parallel_size: int | None = None
    """Refused, as by vLLM: `draft_tensor_parallel_size` is meant. Unit: GPUs. Default: none. Source: vLLM. Example: 1.
    """

    def __attrs_post_init__(self) -> None:
        if self.method is None:
            object.__setattr__(self, "method", _detected(self.model))
        self._check_drafter()
        self._check_acceptance()

    def _check_drafter(self) -> None:
        if self.tensor_parallel_size is not None:
            raise ValueError("'tensor_parallel_size' is not a valid argument in the speculative_config; pass"
                             " 'draft_tensor_parallel_size' instead")
        if self.parallel_drafting:
            raise ValueError("parallel_drafting is not simulated; leave it out")
        if self.enable_adaptive_verification:
            raise ValueError("adaptive verification is only supported with DSpark; leave out"
                             " enable_adaptive_verification")
        if self.model is None and self.method not in ("ngram", "mtp"):
            raise ValueError(f"num_speculative_tokens was provided but without speculative model: name that of method"
                             f" {self.method!r} in model")
        if self.use_heterogeneous_vocab and self.method != "draft_model":
            raise ValueError("use_heterogeneous_vocab only works with method = 'draft_model'; leave it out")
        shortest, longest = self.lookup
        if self.method == "ngram" and shortest > longest:
            raise ValueError(f"prompt_lookup_min = {shortest} must be <= prompt_lookup_max = {longest}")
        if self.match_rate < 1.0 and self.method != "ngram":
            raise ValueError(f"match_rate is about n-grams, and method is {self.method!r}; leave it out")

    def _check_acceptance(self) -> None:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if self.rejection_sample_method != "synthetic":
            if rates is not None or length is not None:
                raise ValueError("synthetic_acceptance_rates and synthetic_acceptance_length are only valid with"
                                 " rejection_sample_method = 'synthetic'")
            if self.acceptance is None:
                raise ValueError(f"how many drafted tokens are accepted is not known without running the model; {_HOW}")
            return
        if self.acceptance is not None or (rates is None) == (length is None):
            raise ValueError("rejection_sample_method = 'synthetic' requires exactly one of synthetic_acceptance_rates"
                             " or synthetic_acceptance_length, and no acceptance")
        k = self.num_speculative_tokens
        if rates is not None and len(rates) != k:
            raise ValueError(f"synthetic_acceptance_rates must have length {k}, not {len(rates)}")
        if length is not None and not 1.0 <= length <= k + 1:
            raise ValueError(f"synthetic_acceptance_length must be in [1, {k + 1}], not {length:g}")

    @property
    def lookup(self) -> tuple[int, int]:
        """The shortest and the longest n-gram that an n-gram drafter looks up."""
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        return least or most or 5, most or least or 5

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the drafter reads the model's hidden states; vLLM's `use_eagle`."""
        return self.method in ("eagle", "eagle3", "mtp")

    @property
    def keeps_cache(self) -> bool:
        """Whether the drafter keeps KV of its own; vLLM's `uses_draft_kv_cache`."""
        return self.method != "ngram"

    @property
    def synthetic_rates(self) -> Sequence[float]:
        """The chance for each position that it and all before it are accepted, as vLLM's synthetic sampler has them.

        It gives the least varied lengths of a mean `synthetic_acceptance_length`.
        """
        if self.synthetic_acceptance_rates is not None:
            return self.synthetic_acceptance_rates
        assert self.synthetic_acceptance_length is not None, "one of the two is set"
        accepted = self.synthetic_acceptance_length - 1
        return [min(1.0, max(0.0, accepted - place)) for place in range(self.num_speculative_tokens)]


def _detected(model: Any) -> str:
    """The method that vLLM tells from the name of the drafter's *model*."""
    name = str(model).lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    return "eagle" if "eagle-" in name else "eagle3" if "eagle3" in name else "draft_model"

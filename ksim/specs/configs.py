"""Parts of an engine's settings that vLLM takes as JSON, key by key.

They are speculative decoding (`SpeculativeConfig`), LoRA adapters (0.33, vllm/config/lora.py and lora/peft_helper.py),
how KV blocks go to other engines (`KvTransferConfig`), and what is done with images.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Attribute, field, fields, frozen
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


#: The ranks that vLLM allows for `max_lora_rank`.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
LORA_DTYPES = ("auto", "bfloat16", "float16")
#: Bytes of a number in any of them: the models' own is BF16.
LORA_BYTES = 2
#: More than any server holds.
_MOST = 10**6


@frozen
class LoraModule:
    """An adapter that is served, or `count` equal ones: an entry of ``--lora-modules``.

    vLLM reads `rank` and `target_modules` from the adapter's adapter_config.json.
    """

    name: str = field()
    """What requests call it; with a `count`, adapters are called name-0, name-1 and so on."""
    rank: int = field(default=16, validator=(gt(0), le(max(RANKS))))
    """Rank of its matrices; `r` in adapter_config.json. Unit: none. Source: PEFT."""
    target_modules: tuple[str, ...] | None = None
    """Modules that it adapts, by their names in the checkpoint. Default: all that `serve.lora_target_modules` allows.
    Source: PEFT. Example: ["q_proj", "v_proj"]."""
    count: int | None = field(default=None, validator=lambda _, at, value: _counted(at, value))
    """Number of equal adapters, for synthetic loads. Unit: adapters. Default: one, called by its name. Source: ksim.
    Example: 64."""

    path: str | None = None
    """Folder of an adapter, relative to the scenario, with an adapter_config.json, from which `rank` and
    `target_modules` are read. Default: none. Source: vLLM. Example: "adapters/sql"."""

    def __attrs_post_init__(self) -> None:
        if not self.name:
            raise ValueError("an adapter needs a name")
        if self.target_modules is not None and not self.target_modules:
            raise ValueError("target_modules is empty; name at least one module, or leave it out")

    @property
    def names(self) -> tuple[str, ...]:
        """What requests call these adapters."""
        return (self.name,) if self.count is None else tuple(f"{self.name}-{place}" for place in range(self.count))


def _counted(attribute: "Attribute[int | None]", value: int | None) -> None:
    if value is not None and not 0 < value <= _MOST:
        raise ValueError(f"{attribute.name!r} must be from 1 to {_MOST:,}, not {value}")


def ranked(_: object, attribute: "Attribute[int]", value: int) -> None:
    """Check a setting that is one of vLLM's ranks."""
    if value not in RANKS:
        raise ValueError(f"{attribute.name!r} must be one of {', '.join(map(str, RANKS))}, not {value}")


def check_lora(settings: Any) -> None:
    """Raise ValueError for what vLLM refuses of an engine's LoRA settings."""
    if not settings.enable_lora:
        if settings.lora_modules:
            raise ValueError("lora_modules are adapters, which need enable_lora; set it, or leave them out")
        return
    if settings.max_cpu_loras is not None and settings.max_cpu_loras < settings.max_loras:
        raise ValueError(f"max_cpu_loras = {settings.max_cpu_loras} must be at least max_loras = {settings.max_loras}:"
                         f" what is on the GPU is kept in host memory too")
    ranks = settings.tensor_parallel_size
    if settings.fully_sharded_loras and settings.max_lora_rank % ranks:
        raise ValueError(f"fully_sharded_loras divides max_lora_rank = {settings.max_lora_rank} among"
                         f" tensor_parallel_size = {ranks} GPUs; choose a rank that it divides")
    _check_modules(settings.lora_modules, settings.max_lora_rank)


def _check_modules(modules: Sequence[LoraModule], most: int) -> None:
    for module in modules:
        if module.rank > most:
            raise ValueError(f"adapter {module.name!r} of rank {module.rank} is beyond max_lora_rank = {most}; set it"
                             f" to {min(rank for rank in RANKS if rank >= module.rank)} or more")
    names = [name for module in modules for name in module.names]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"lora_modules has two adapters called {twice!r}")


#: What vLLM's flag ``--kv-offloading-backend`` takes.
OFFLOADING_BACKENDS = ("native", "lmcache")
ROLES = ("kv_producer", "kv_consumer", "kv_both")


@frozen
class KvTransferConfig:
    """What vLLM's flag ``--kv-transfer-config`` takes (0.33, vllm/config/kv_transfer.py).

    Addresses, ports and ids are read, so that a deployment's own text is valid, and change nothing.
    """

    kv_connector: str | None = None
    """The connector, which says which KV goes where and when; vLLM's class names are accepted. OffloadingConnector
    keeps KV of one engine, MultiConnector has several. Default: NixlConnector where pools prefill and decode apart.
    Names: kv.transfer.connectors. Source: vLLM. Example: "NixlConnector"."""
    kv_role: str | None = field(default=None, validator=optional(in_(ROLES)))
    """Whether an engine sends KV, takes it, or both. Default: that of the pool's role. Source: vLLM. Example:
    "kv_both"."""
    kv_load_failure_policy: str = field(default="fail", validator=in_(("fail", "recompute")))
    """What becomes of a request whose KV does not arrive: it ends with an error, or its prompt is computed again.
    Source: vLLM."""
    kv_connector_extra_config: Mapping[str, Any] = field(factory=dict)
    """Options of the connector. Default: none. Source: vLLM. Example: {kv_lease_duration = 30}."""
    kv_buffer_device: str = field(default="cuda", validator=in_(("cuda", "cpu", "xpu")))
    """Where KV is kept while it is sent; ksim knows "cuda" alone. Source: vLLM."""
    kv_buffer_size: float = field(default=1e9, validator=gt(0))
    """Buffer of connectors that ksim does not simulate; changes nothing. Unit: B. Source: vLLM."""
    kv_parallel_size: int = field(default=1, validator=gt(0))
    """Instances that send to each other; changes nothing. Unit: instances. Source: vLLM."""
    kv_rank: int | None = field(default=None, validator=optional(ge(0)))
    """Number of the instance; changes nothing. Unit: none. Default: none. Source: vLLM. Example: 0."""
    kv_ip: str = "127.0.0.1"
    """Address; changes nothing. Source: vLLM."""
    kv_port: int = field(default=14579, validator=gt(0))
    """Port; changes nothing. Unit: none. Source: vLLM."""
    engine_id: str | None = None
    """Name of the instance; changes nothing. Default: one that vLLM draws. Source: vLLM. Example: "decode-0"."""
    kv_connector_module_path: str | None = None
    """Module of a connector class of one's own; ksim takes "package.module:Class" as `kv_connector` instead. Default:
    none. Source: vLLM. Example: "mine.connectors"."""
    enable_permute_local_kv: bool = False
    """Change the layout of KV that arrives; changes nothing. Source: vLLM."""

    def __attrs_post_init__(self) -> None:
        if self.kv_buffer_device != "cuda":
            raise ValueError(f"kv_buffer_device = {self.kv_buffer_device!r} would send KV by way of host memory, which"
                             f" is not simulated; set 'cuda', or leave it out")
        if self.kv_connector_module_path is not None:
            raise ValueError(f"kv_connector_module_path = {self.kv_connector_module_path!r} names code of vLLM's, which"
                             f" ksim cannot run; write a plug-in, and name it in kv_connector as package.module:Class")

    @property
    def produces(self) -> bool:
        """Whether the engine sends KV."""
        return self.kv_role in ("kv_producer", "kv_both")

    @property
    def consumes(self) -> bool:
        """Whether the engine takes KV."""
        return self.kv_role in ("kv_consumer", "kv_both")


#: vLLM's `mm_encoder_tp_mode`.
ENCODER_MODES = ("weights", "data")
_COUNT = optional(gt(0))


@frozen
class LimitMmPerPrompt:
    """What vLLM's flag ``--limit-mm-per-prompt`` takes (0.33, vllm/config/multimodal.py)."""

    image: int = field(default=999, validator=ge(0))
    """Most images in a prompt. Unit: images. Source: vLLM."""
    video: int = field(default=999, validator=ge(0))
    """Most videos in a prompt. ksim has no videos, but vLLM makes its encoder's budget and cache large enough for the
    longest one; 0 leaves it at that of images. Unit: videos. Source: vLLM."""


@frozen
class MmProcessorKwargs:
    """What vLLM's flag ``--mm-processor-kwargs`` takes; each family of models has some of these keys."""

    min_pixels: int | None = field(default=None, validator=_COUNT)
    """Fewest pixels of an image after it is resized (Qwen). Unit: pixels. Default: that of the family.
    Source: vLLM. Example: 200704."""
    max_pixels: int | None = field(default=None, validator=_COUNT)
    """Most pixels of an image after it is resized (Qwen). Unit: pixels. Default: that of the family.
    Source: vLLM. Example: 1003520."""
    min_dynamic_patch: int | None = field(default=None, validator=_COUNT)
    """Fewest tiles of an image (InternVL). Unit: tiles. Default: that of config.json. Source: vLLM. Example: 1."""
    max_dynamic_patch: int | None = field(default=None, validator=_COUNT)
    """Most tiles of an image (InternVL). Unit: tiles. Default: that of config.json. Source: vLLM. Example: 4."""
    dynamic_image_size: bool | None = None
    """Cut images into tiles (InternVL). Default: that of config.json. Source: vLLM. Example: false."""
    use_thumbnail: bool | None = None
    """Have the whole image as one more tile (InternVL). Default: that of config.json. Source: vLLM. Example: false."""
    max_patches: int | None = field(default=None, validator=_COUNT)
    """Most tiles of an image (Llama 4). Unit: tiles. Default: 16. Source: vLLM. Example: 4."""
    resize_to_max_canvas: bool | None = None
    """Magnify images as far as tiles allow (Llama 4). Default: false. Source: vLLM. Example: true."""
    do_pan_and_scan: bool | None = field(default=None, validator=optional(in_((False,))))
    """Add crops of the image (Gemma 3); ksim knows false alone. Default: false. Source: vLLM. Example: false."""

    @property
    def given(self) -> dict[str, int | bool]:
        """Those that are set."""
        return {each.name: value for each in fields(MmProcessorKwargs)
                if (value := getattr(self, each.name)) is not None}

"""A Hugging Face ``config.json``, the keys that an architecture has read of it, and those that many families share.

Shared keys are of sizes, lengths, windows and the kinds of layers.  Keys that change neither kernels nor weights are
listed with the values for which that is so.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from attrs import field, frozen

from ksim.foundation.errors import ConfigError

__all__ = ["MODELS", "neutral", "MOST", "Config", "FULL", "SLIDING", "late_windows", "layer_types", "max_length",
           "only", "rotary", "sizes", "sparse", "text", "windows"]


#: In place of a list of values: whatever the key says.
ANY = (...,)


def _keys(text: str, values: Iterable[Any] = ANY) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(text.split(), tuple(values))


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # Where the file comes from, and by what code it is read.
    **_keys("_name_or_path name_or_path architectures model_type auto_map transformers_version _commit_hash"
            " _attn_implementation _attn_implementation_autoset attn_implementation _flash_attn_2_enabled"
            " _experts_implementation use_flash_attn version id2label label2id problem_type keys_to_ignore_at_inference"
            " return_dict _remove_final_layer_norm gradient_checkpointing use_cache cache_implementation"
            " bad_words_ids chunk_size_feed_forward torchscript"),
    # How it was trained: initial values, dropout, losses.
    **_keys("initializer_range initializer_factor init_std attention_dropout attn_dropout attn_pdrop embd_pdrop"
            " resid_pdrop embed_dropout"
            " hidden_dropout hidden_dropout_prob attention_dropout_prob attention_probs_dropout_prob"
            " classifier_dropout residual_dropout embedding_dropout router_aux_loss_coef aux_loss_alpha"
            " output_router_logits output_attentions output_hidden_states seq_aux router_jitter_noise"
            " input_jitter_noise router_dtype pretraining_tp n_ctx ep_size"
            " summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
            " task_specific_params rescale_every capacity_factor moe_capacity moe_drop_tokens"
            " moe_random_routing_dropped_token"),
    # Tokenizers and generation; keys that end in _token_id and the like are so, too.
    **_keys("tokenizer_class max_new_tokens do_sample temperature top_p min_length max_length"
            " eod_id pad_id org_vocab_size im_start_id im_end_id im_newline_id text_start_id text_end_id video_start_id"
            " video_end_id mask_init_id"
            " diversity_penalty early_stopping encoder_no_repeat_ngram_size length_penalty no_repeat_ngram_size"
            " num_beams num_beam_groups num_return_sequences output_scores remove_invalid_values repetition_penalty"
            " return_dict_in_generate top_k typical_p use_bfloat16"
            " separator suppress_tokens forced_bos_token_id add_bos_token prefix reorder_and_upcast_attn"),
    # Weights are served in 16 bits, as vLLM's `dtype = auto` loads them.
    **_keys("torch_dtype dtype", ("bfloat16", "float16", "float32", "auto")),
    # Numbers inside of kernels, which run as long with any: epsilons, angles, scales, caps on scores.
    **_keys("rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon layernorm_epsilon rope_theta"
            " rotary_emb_base rope_local_base_freq global_rope_theta local_rope_theta rope_base partial_rotary_factor"
            " rotary_pct rotary_dim rope_interleave indexer_rope_interleave rope_3d"
            " query_pre_attn_scalar attn_logit_softcapping attention_multiplier scale_attn_weights"
            " swiglu_limit swiglu_limits original_max_position_embeddings initial_context_length"
            " use_parallel_embedding moe_router_dtype"
            " attn_scale floor_scale attn_temperature_tuning mscale"),
    # What the router's kernel does on the way: scores, groups, scales.
    **_keys("norm_topk_prob topk_method scoring_func n_group topk_group num_expert_group"
            " routed_scaling_factor router_scaling_factor moe_router_activation_func"
            " moe_renormalize norm_expert_weight use_grouped_topk score_function"
            " expert_selection_fn topk_softmax"
            " apply_router_weight_on_input"),
    # Modules for multi-token prediction, which a drafter reads (docs/speculation.md).
    **_keys("num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules mtp_transformer_layers use_mtp"
            " mtp_use_dedicated_embeddings mtp_loss_scaling_factor num_mtp_layers"),
    # Switches that say nothing more while they are off, or as every model has them.
    **_keys("use_bidirectional_attention is_encoder_decoder add_cross_attention cross_attention"
            " is_cross_attention use_mrope alibi scale_attn_by_inverse_layer_idx use_sliding_window tf_legacy_loss"
            " output_past compression_ratio enable_lm_head_fp32"
            " tie_encoder_decoder use_cla ffn_only use_mla position_embedding_xdrope add_classification_head"
            " add_swa_attention_sink_bias"
            " add_full_attention_sink_bias", (False,)),
    # What kernels of states do on the way: steps, factors, norms before or after the gate.
    **_keys("time_step_limit time_step_min time_step_max time_step_floor time_step_rank mamba_norm_before_gate"
            " residual_multiplier logits_scaling embedding_multiplier lm_head_multiplier key_multiplier mlp_multipliers"
            " attention_in_multiplier attention_out_multiplier ssm_multipliers ssm_in_multiplier ssm_out_multiplier"
            " layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha"
            " layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta shared_moe_mode"
            " rescale_prenorm_residual use_mamba_kernels num_logits_to_keep moe_shared_expert_overlap use_mambapy"
            " use_associative_scan mtp_hybrid_override_pattern mtp_layers_block_type calc_logits_for_entire_prompt"),
    **_keys("residual_in_fp32", (False,)),
    **_keys("mamba_hidden_act", ("silu",)),
    **_keys("normalization_function", ("rmsnorm",)),
    **_keys("is_decoder", (True, False)),
    **_keys("use_rope use_rotary_pos_emb use_rms_norm swiglu mamba_use_mlp", (True,)),
    **_keys("position_embedding_type", ("rope", "rope_gptj")),
    **_keys("clip_qkv", (0, 0.0)),
    **_keys("pruned_heads", ({}, [])),
}

#: The same for tables inside, by the key that they are under.
INSIDE: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    # Angles; the kernel of a stretched embedding is that of any.
    "rope_scaling": _keys("beta_fast beta_slow mscale mscale_all_dim low_freq_factor high_freq_factor rope_theta"
                          " truncate alpha extrapolation_factor attn_factor attention_factor short_factor long_factor"
                          " short_mscale long_mscale original_max_position_embeddings partial_rotary_factor"
                          " mrope_section mrope_interleaved finetuned llama_4_scaling_beta"
                          " max_position_embeddings rope_type type factor"),
    # How a quantized checkpoint was made; the formats themselves are read.
    "quantization_config": _keys("fmt activation_scheme version producer scale_fmt"
                                 " quantization_status global_compression_ratio sparsity_config"
                                 " config_groups transform_config"
                                 " format targets observer observer_kwargs actorder dynamic symmetric zp_dtype"
                                 " scale_dtype dtype output_activations global_scale kv_cache_scheme"
                                 " strategy block_structure num_bits type group_size input_activations weights"
                                 " bits w_bit q_group_size zero_point backend do_fuse exllama_config fuse_max_seq_len"
                                 " sym desc_act static_groups true_sequential damp_percent damp_auto_increment mse"
                                 " checkpoint_format is_marlin_format model_name_or_path model_file_base_name meta"
                                 " pack_dtype quant_method dataset tokenizer batch_size block_name_to_quantize"
                                 " cache_block_outputs max_input_length model_seqlen module_name_preceding_first_block"
                                 " use_cuda_fp16 use_exllama pad_token_id hyb_act activation_scale_ub"
                                 " autoround_version iters lr minmax_lr nsamples seqlen enable_quanted_input"
                                 " gradient_accumulate_steps low_gpu_mem_usage amp scale_bits packing_format"
                                 " to_quant_block_names enable_minmax_tuning enable_norm_bias_tuning"
                                 " bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type _load_in_4bit"
                                 " _load_in_8bit load_in_4bit load_in_8bit llm_int8_enable_fp32_cpu_offload"
                                 " llm_int8_has_fp16_weight llm_int8_threshold"),
}
#: Of vision towers: names, angles, how they were trained, and activations, which take as long whichever it is.
VISION = {
    **{key: NEUTRAL[key] for key in ("architectures", "model_type", "auto_map", "attention_dropout", "dropout", "dtype",
                                     "torch_dtype", "initializer_range", "initializer_factor", "layer_norm_eps",
                                     "norm_eps", "rope_theta", "use_flash_attn", "_attn_implementation_autoset",
                                     "_name_or_path", "transformers_version", "_attn_implementation")
       if key in NEUTRAL},
    **_keys("hidden_act dropout hidden_dropout_prob init_std"
            " drop_path_rate rms_norm_eps projector_dropout tokens_per_second spatial_patch_size"
            " use_bfloat16 vision_feature_layer vision_feature_select_strategy capacity_factor eval_capacity_factor"
            " laux_allreduce moe_coeff_ratio moe_intermediate_size moe_output_scale noisy_gate_policy num_experts"
            " num_routed_experts num_shared_experts shared_expert_intermediate_size use_moe use_residual use_rts"
            " use_weighted_residual ep_size"),
    **_keys("in_chans in_channels num_channels", (3,)),
    **_keys("vision_use_head multi_modal_projector_bias", (False,)),
}
INSIDE = {**INSIDE, "vision_config": VISION, "rope_parameters": INSIDE["rope_scaling"]}

#: Tables inside that are configs of models: a language model's, beside an encoder's.
MODELS = ("", "text_config", "llm_config", "thinker_config")
#: Ends of keys that name tokens by their numbers.
TOKENS = ("_token_id", "_token_ids", "_token_index", "_tokens_id", "_token")


def neutral(place: str, key: str, value: Any) -> bool:
    """Whether *key* with *value*, in the table under *place*, changes neither kernels nor weights."""
    table = NEUTRAL if place in MODELS else INSIDE.get(place, {})
    if table is NEUTRAL and key.endswith(TOKENS):
        return True
    allowed = table.get(key, ())
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

"""Keys of a config.json that change neither kernels nor weights, with the values for which that is so."""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["MODELS", "neutral"]

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

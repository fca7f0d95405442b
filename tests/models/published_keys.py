"""Keys that published Hugging Face configurations have, by ``model_type``; under "" those of all."""

PUBLISHED_KEYS: dict[str, str] = {
    "": (
        "architectures attention_dropout auto_map bos_token_id eos_token_id hidden_act initializer_range "
        "max_position_embeddings model_type pad_token_id rms_norm_eps rope_scaling rope_theta "
        "tie_word_embeddings torch_dtype transformers_version use_cache vocab_size"
    ),
    "bert": (
        "attention_probs_dropout_prob classifier_dropout gradient_checkpointing hidden_dropout_prob "
        "hidden_size intermediate_size is_decoder layer_norm_eps num_attention_heads num_hidden_layers "
        "position_embedding_type type_vocab_size"
    ),
    "bloom": (
        "apply_residual_connection_post_layernorm attention_dropout attention_softmax_in_fp32 "
        "bias_dropout_fusion hidden_dropout hidden_size layer_norm_epsilon masked_softmax_fusion n_embed "
        "n_head n_inner n_layer num_attention_heads offset_alibi pretraining_tp seq_length skip_bias_add "
        "skip_bias_add_qkv slow_but_exact unk_token_id"
    ),
    "cohere2": (
        "attention_bias head_dim hidden_size intermediate_size layer_norm_eps layer_switch layer_types "
        "logit_scale num_attention_heads num_hidden_layers num_key_value_heads order_of_interleaved_layers "
        "position_embedding_type rotary_pct sliding_window sliding_window_pattern use_embedding_sharing "
        "use_gated_activation use_parallel_block use_parallel_embedding use_qk_norm"
    ),
    "dbrx": (
        "attn_config attn_pdrop d_model emb_pdrop ffn_config max_seq_len n_heads n_layers resid_pdrop "
        "router_aux_loss_coef"
    ),
    "deepseek_v2": (
        "attention_bias aux_loss_alpha ep_size first_k_dense_replace hidden_size intermediate_size "
        "kv_lora_rank moe_intermediate_size moe_layer_freq n_group n_routed_experts n_shared_experts "
        "norm_topk_prob num_attention_heads num_experts_per_tok num_hidden_layers num_key_value_heads "
        "pretraining_tp q_lora_rank qk_nope_head_dim qk_rope_head_dim routed_scaling_factor scoring_func "
        "seq_aux topk_group topk_method v_head_dim"
    ),
    "deepseek_v3": (
        "attention_bias aux_loss_alpha ep_size first_k_dense_replace head_dim hidden_size intermediate_size "
        "kv_lora_rank moe_intermediate_size moe_layer_freq n_group n_routed_experts n_shared_experts "
        "norm_topk_prob num_attention_heads num_experts_per_tok num_hidden_layers num_key_value_heads "
        "num_nextn_predict_layers pretraining_tp q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim "
        "quantization_config rope_interleave routed_scaling_factor scoring_func seq_aux topk_group "
        "topk_method v_head_dim"
    ),
    "falcon": (
        "activation alibi apply_residual_connection_post_layernorm attention_dropout bias ffn_hidden_size "
        "hidden_dropout hidden_size layer_norm_epsilon multi_query n_embed n_head n_layer "
        "new_decoder_architecture num_attention_heads num_hidden_layers num_kv_heads "
        "num_ln_in_parallel_attn parallel_attn"
    ),
    "gemma": (
        "attention_bias head_dim hidden_activation hidden_size intermediate_size num_attention_heads "
        "num_hidden_layers num_key_value_heads"
    ),
    "gemma2": (
        "attention_bias attn_logit_softcapping cache_implementation final_logit_softcapping head_dim "
        "hidden_activation hidden_size intermediate_size layer_types num_attention_heads num_hidden_layers "
        "num_key_value_heads query_pre_attn_scalar sliding_window sliding_window_size "
        "use_bidirectional_attention"
    ),
    "gemma3_text": (
        "_sliding_window_pattern attention_bias attn_logit_softcapping cache_implementation "
        "final_logit_softcapping head_dim hidden_activation hidden_size intermediate_size layer_types "
        "num_attention_heads num_hidden_layers num_key_value_heads query_pre_attn_scalar "
        "rope_local_base_freq sliding_window sliding_window_pattern use_bidirectional_attention"
    ),
    "glm4_moe": (
        "attention_bias first_k_dense_replace head_dim hidden_size intermediate_size moe_intermediate_size "
        "n_group n_routed_experts n_shared_experts norm_topk_prob num_attention_heads num_experts_per_tok "
        "num_hidden_layers num_key_value_heads num_nextn_predict_layers partial_rotary_factor "
        "routed_scaling_factor topk_group use_qk_norm"
    ),
    "gpt2": (
        "activation_function attn_pdrop embd_pdrop layer_norm_epsilon n_ctx n_embd n_head n_inner n_layer "
        "n_positions reorder_and_upcast_attn resid_pdrop scale_attn_by_inverse_layer_idx scale_attn_weights "
        "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj "
        "task_specific_params"
    ),
    "gpt_bigcode": (
        "activation_function attention_softmax_in_fp32 attn_pdrop embd_pdrop inference_runner "
        "layer_norm_epsilon max_batch_size max_sequence_length multi_query n_embd n_head n_inner n_layer "
        "n_positions pad_key_length pre_allocate_kv_cache resid_pdrop scale_attention_softmax_in_fp32 "
        "scale_attn_weights"
    ),
    "gpt_neo": (
        "activation_function attention_dropout attention_layers attention_types classifier_dropout "
        "embed_dropout gradient_checkpointing hidden_size intermediate_size layer_norm_epsilon num_heads "
        "num_layers resid_dropout window_size"
    ),
    "gpt_neox": (
        "attention_bias attention_dropout attention_probs_dropout_prob classifier_dropout hidden_dropout "
        "hidden_dropout_prob hidden_size intermediate_size layer_norm_eps num_attention_heads "
        "num_hidden_layers partial_rotary_factor rotary_emb_base rotary_pct use_parallel_residual"
    ),
    "gpt_oss": (
        "attention_bias attention_dropout experts_per_token head_dim hidden_size initial_context_length "
        "intermediate_size layer_types num_attention_heads num_experts_per_tok num_hidden_layers "
        "num_key_value_heads num_local_experts output_router_logits quantization_config "
        "router_aux_loss_coef sliding_window swiglu_limit"
    ),
    "gptj": (
        "activation_function attn_pdrop embd_pdrop gradient_checkpointing layer_norm_epsilon n_embd n_head "
        "n_inner n_layer n_positions resid_pdrop rotary rotary_dim scale_attn_weights summary_activation "
        "summary_first_dropout"
    ),
    "granitemoe": (
        "attention_bias attention_multiplier embedding_multiplier hidden_size intermediate_size "
        "logits_scaling num_attention_heads num_experts_per_tok num_hidden_layers num_key_value_heads "
        "num_local_experts output_router_logits residual_multiplier router_aux_loss_coef"
    ),
    "internlm2": (
        "attn_implementation bias hidden_size intermediate_size num_attention_heads num_hidden_layers "
        "num_key_value_heads pretraining_tp"
    ),
    "llama": (
        "attention_bias attention_dropout head_dim hidden_size intermediate_size mlp_bias "
        "num_attention_heads num_hidden_layers num_key_value_heads pretraining_tp"
    ),
    "llama4_text": (
        "attention_bias attention_chunk_size attn_scale attn_temperature_tuning floor_scale for_llm_rope "
        "head_dim hidden_size interleave_moe_layer_step intermediate_size intermediate_size_mlp moe_layers "
        "no_rope_layer_interval no_rope_layers num_attention_heads num_experts_per_tok num_hidden_layers "
        "num_key_value_heads num_local_experts output_router_logits router_aux_loss_coef "
        "router_jitter_noise use_qk_norm"
    ),
    "mistral": (
        "head_dim hidden_size intermediate_size num_attention_heads num_hidden_layers num_key_value_heads "
        "sliding_window"
    ),
    "mixtral": (
        "hidden_size intermediate_size num_attention_heads num_experts_per_tok num_hidden_layers "
        "num_key_value_heads num_local_experts output_router_logits router_aux_loss_coef "
        "router_jitter_noise sliding_window"
    ),
    "mpt": (
        "attn_config d_model emb_pdrop embedding_fraction expansion_ratio init_config init_device "
        "layer_norm_epsilon learned_pos_emb logit_scale max_seq_len n_heads n_layers no_bias norm_type "
        "resid_pdrop tokenizer_name verbose"
    ),
    "nemotron": (
        "attention_bias head_dim hidden_size intermediate_size kv_channels mlp_bias norm_eps "
        "num_attention_heads num_hidden_layers num_key_value_heads partial_rotary_factor rope_percent"
    ),
    "olmo": (
        "attention_bias clip_qkv hidden_size intermediate_size num_attention_heads num_hidden_layers "
        "num_key_value_heads"
    ),
    "olmo2": (
        "attention_bias hidden_size intermediate_size num_attention_heads num_hidden_layers "
        "num_key_value_heads"
    ),
    "olmoe": (
        "attention_bias clip_qkv hidden_size intermediate_size norm_topk_prob num_attention_heads "
        "num_experts num_experts_per_tok num_hidden_layers num_key_value_heads output_router_logits "
        "router_aux_loss_coef"
    ),
    "opt": (
        "_remove_final_layer_norm activation_dropout activation_function attention_dropout "
        "do_layer_norm_before dropout enable_bias ffn_dim hidden_size init_std "
        "layer_norm_elementwise_affine layerdrop num_attention_heads num_hidden_layers prefix "
        "word_embed_proj_dim"
    ),
    "phi": (
        "attention_dropout embd_pdrop hidden_size intermediate_size layer_norm_eps num_attention_heads "
        "num_hidden_layers num_key_value_heads partial_rotary_factor qk_layernorm resid_pdrop"
    ),
    "phi3": (
        "attention_bias embd_pdrop hidden_size intermediate_size num_attention_heads num_hidden_layers "
        "num_key_value_heads original_max_position_embeddings partial_rotary_factor resid_pdrop "
        "sliding_window"
    ),
    "phimoe": (
        "attention_bias hidden_dropout hidden_size input_jitter_noise intermediate_size lm_head_bias "
        "num_attention_heads num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts "
        "original_max_position_embeddings output_router_logits router_aux_loss_coef router_jitter_noise "
        "sliding_window"
    ),
    "qwen2": (
        "hidden_size intermediate_size max_window_layers num_attention_heads num_hidden_layers "
        "num_key_value_heads sliding_window use_mrope use_sliding_window"
    ),
    "qwen2_moe": (
        "decoder_sparse_step hidden_size intermediate_size max_window_layers mlp_only_layers "
        "moe_intermediate_size norm_topk_prob num_attention_heads num_experts num_experts_per_tok "
        "num_hidden_layers num_key_value_heads output_router_logits qkv_bias router_aux_loss_coef "
        "shared_expert_intermediate_size sliding_window use_sliding_window"
    ),
    "qwen3": (
        "attention_bias head_dim hidden_size intermediate_size layer_types max_window_layers "
        "num_attention_heads num_hidden_layers num_key_value_heads sliding_window use_sliding_window"
    ),
    "qwen3_moe": (
        "attention_bias decoder_sparse_step head_dim hidden_size intermediate_size max_window_layers "
        "mlp_only_layers moe_intermediate_size norm_topk_prob num_attention_heads num_experts "
        "num_experts_per_tok num_hidden_layers num_key_value_heads output_router_logits "
        "router_aux_loss_coef sliding_window use_sliding_window"
    ),
    "stablelm": (
        "attention_dropout hidden_dropout hidden_size intermediate_size layer_norm_eps norm_eps "
        "num_attention_heads num_heads num_hidden_layers num_key_value_heads partial_rotary_factor "
        "qk_layernorm rope_pct use_parallel_residual use_qkv_bias"
    ),
    "starcoder2": (
        "attention_dropout embedding_dropout hidden_size intermediate_size mlp_type norm_epsilon norm_type "
        "num_attention_heads num_hidden_layers num_key_value_heads residual_dropout sliding_window use_bias"
    ),
    "t5": (
        "classifier_dropout d_ff d_kv d_model decoder_start_token_id dense_act_fn dropout_rate "
        "feed_forward_proj initializer_factor is_encoder_decoder is_gated_act layer_norm_epsilon "
        "n_positions num_decoder_layers num_heads num_layers output_past relative_attention_max_distance "
        "relative_attention_num_buckets task_specific_params"
    ),
    "vit": (
        "attention_probs_dropout_prob encoder_stride hidden_dropout_prob hidden_size id2label image_size "
        "intermediate_size label2id layer_norm_eps num_attention_heads num_channels num_hidden_layers "
        "num_labels patch_size pooler_act pooler_output_size qkv_bias"
    ),
}  # fmt: skip

"""What others call a setting: ``vpp``, ``micro_batch_size``, ``num_hidden_layers``.

Told in messages alone: a key has one name here, and a guess by likeness ("vpp": did you mean "pp"?) misleads.
Names of launchers' flags are in their dialects (:mod:`workloads.jobs.launch`).
"""

from __future__ import annotations

from typing import Final

#: Key -> names of it in Megatron, DeepSpeed, torchtitan, NeMo, Transformers, and in papers.
_CALLED: Final = {
    "parallel.tp": "tensor_parallel tensor_model_parallel",
    "parallel.pp": "pipeline_parallel pipeline_model_parallel num_stages",
    "parallel.dp": "data_parallel data_parallel_replicate dp_replicate num_replicas replicas",
    "parallel.dp_shard": "fsdp data_parallel_shard hsdp",
    "parallel.cp": "context_parallel",
    "parallel.ep": "expert_parallel expert_model_parallel",
    "parallel.etp": "expert_tensor_parallel expert_tensor_model_parallel",
    "parallel.virtual_stages": "vpp vp v chunks num_chunks model_chunks virtual_pipeline"
    " virtual_pipeline_model_parallel interleave",
    "training.global_batch": "gbs batch train_batch num_microbatches microbatches ga gradient_accumulation"
    " gradient_accumulation_steps grad_accum_steps",
    "training.micro_batch": "mbs microbatch micro_batch_per_gpu train_micro_batch_size_per_gpu local_batch"
    " per_device_train_batch",
    "training.seq": "seq_len seq_length sequence_length sequence context_length context max_seq_len"
    " max_position_embeddings max_length block",
    "training.precision": "dtype mixed_precision torch_dtype compute_dtype",
    "training.recompute": "activation_checkpointing gradient_checkpointing checkpointing recomputation"
    " activation_recompute recompute_granularity",
    "training.sharding": "zero zero_stage sharding_strategy distributed_optimizer use_distributed_optimizer",
    "software.preset": "framework",
    "model.layers": "num_layers n_layers n_layer num_hidden_layers",
    "model.hidden": "d_model n_embd dim embed_dim model_dim",
    "model.heads": "num_heads n_heads n_head num_attention_heads",
    "model.kv_heads": "num_kv_heads n_kv_heads num_key_value_heads num_query_groups",
    "model.ffn": "ffn_hidden d_ff intermediate ffn_dim",
    "model.head_size": "head_dim kv_channels",
    "model.vocab": "vocabulary padded_vocab n_vocab",
    "model.family": "model_type architecture",
}
_KEYS: Final = {name: key for key, names in _CALLED.items() for name in names.split()}


def called_otherwise(name: str) -> str | None:
    """The key (``section.key``) that others call ``name``; None where it is not known."""
    plain = name.lower().replace("-", "_").replace("parallelism", "parallel")
    return _KEYS.get(plain) or _KEYS.get(plain.removesuffix("_size").removesuffix("_degree"))

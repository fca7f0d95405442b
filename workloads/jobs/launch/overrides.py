"""Megatron-Bridge and NeMo: Megatron-LM's flags under other names, as overrides of a configuration.

What a flag means stands in Megatron-LM's table; here stand names alone, read in both directions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from workloads.jobs.complete import Description
from workloads.jobs.launch.dialect import Dialect
from workloads.jobs.launch.megatron import MEGATRON
from workloads.jobs.launch.options import Words, flat_words
from workloads.jobs.presets import megatron_build

#: Keys of one flag: of its value, or (keys, on, off) of a switch.
_Names = Mapping[str, str | tuple[str, str, str]]
#: Of alternatives the first whose flags are all there: (flags, keys with values).
_Alternatives = tuple[tuple[Words, Mapping[str, str]], ...]

_PER_CHUNK, _CHUNKS = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
_SWIGLU: Final[Words] = {"--swiglu": ()}
_SQUARED: Final[Words] = {"--squared-relu": ()}
_GEGLU: Final[Words] = {"--quick-geglu": ()}


def _on(key: str) -> tuple[str, str, str]:
    return key, "true", "false"


def _off(key: str) -> tuple[str, str, str]:
    return key, "false", "true"


def _plain(prefix: str, *flags: str) -> dict[str, str]:
    """Flags whose keys are their names with underscores."""
    return {flag: f"{prefix}{flag[2:].replace('-', '_')}" for flag in flags}


_SAME: Final = _plain(
    "model.", "--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads",
    "--num-query-groups", "--kv-channels", "--hidden-dropout", "--attention-dropout",
    "--position-embedding-type", "--make-vocab-size-divisible-by", "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size", "--context-parallel-size", "--expert-model-parallel-size",
    "--moe-router-topk",
)  # fmt: skip
_CHUNKED: Final = {
    _CHUNKS: "model.virtual_pipeline_model_parallel_size",
    "--num-experts": "model.num_moe_experts",
}

_BRIDGE: Final[_Names] = {
    **_SAME, **_CHUNKED,
    **_plain(
        "model.", "--normalization", "--vocab-size", "--expert-tensor-parallel-size", "--cp-comm-type",
        "--pipeline-model-parallel-layout", "--microbatch-group-size-per-virtual-pipeline-stage",
        "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-modules",
        "--offload-modules",
        "--moe-ffn-hidden-size", "--moe-layer-freq", "--moe-shared-expert-intermediate-size",
        "--moe-router-num-groups", "--moe-router-group-topk", "--moe-token-dispatcher-type",
        "--moe-flex-dispatcher-backend", "--moe-router-dtype", "--moe-expert-capacity-factor",
        "--mtp-num-layers", "--attention-backend", "--cross-entropy-fusion-impl", "--window-size",
        "--window-attn-skip-freq", "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim",
        "--qk-pos-emb-head-dim", "--v-head-dim", "--activation-func-clamp-value",
    ),
    **_plain("train.", "--micro-batch-size", "--global-batch-size"),
    "--seq-length": "model.seq_length",
    "--clip-grad": "optimizer.clip_grad",
    "--ddp-bucket-size": "ddp.bucket_size",
    "--num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "--sequence-parallel": _on("model.sequence_parallel"),
    "--disable-bias-linear": _off("model.add_bias_linear"),
    "--add-qkv-bias": _on("model.add_qkv_bias"),
    "--qk-layernorm": _on("model.qk_layernorm"),
    "--untie-embeddings-and-output-weights": _off("model.share_embeddings_and_output_weights"),
    "--multi-latent-attention": _on("model.multi_latent_attention"),
    "--account-for-embedding-in-pipeline-split": _on("model.account_for_embedding_in_pipeline_split"),
    "--account-for-loss-in-pipeline-split": _on("model.account_for_loss_in_pipeline_split"),
    "--moe-shared-expert-gate": _on("model.moe_shared_expert_gate"),
    "--moe-grouped-gemm": _on("model.moe_grouped_gemm"),
    "--moe-permute-fusion": _on("model.moe_permute_fusion"),
    "--moe-router-fusion": _on("model.moe_router_fusion"),
    "--cross-entropy-loss-fusion": _on("model.cross_entropy_loss_fusion"),
    "--no-gradient-accumulation-fusion": _off("model.gradient_accumulation_fusion"),
    "--no-masked-softmax-fusion": _off("model.masked_softmax_fusion"),
    "--no-bias-dropout-fusion": _off("model.bias_dropout_fusion"),
    "--no-rope-fusion": _off("model.apply_rope_fusion"),
    "--use-distributed-optimizer": _on("ddp.use_distributed_optimizer"),
    "--overlap-grad-reduce": _on("ddp.overlap_grad_reduce"),
    "--overlap-param-gather": _on("ddp.overlap_param_gather"),
    "--grad-reduce-in-bf16": _off("ddp.grad_reduce_in_fp32"),
    "--fine-grained-activation-offloading": _on("model.fine_grained_activation_offloading"),
    "--tp-comm-overlap": _on("comm_overlap.tp_comm_overlap"),
    "--overlap-moe-expert-parallel-comm": _on("comm_overlap.overlap_moe_expert_parallel_comm"),
    "--use-tp-pp-dp-mapping": _on("dist.use_tp_pp_dp_mapping"),
}  # fmt: skip


def _fp8(recipe: str) -> Words:
    return {"--bf16": (), "--fp8-format": ("hybrid",), "--fp8-recipe": (recipe,)}


_BRIDGE_PRECISIONS: Final[_Alternatives] = (
    (_fp8("delayed"), {"mixed_precision": "bf16_with_fp8_delayed_scaling_mixed"}),
    (_fp8("tensorwise"), {"mixed_precision": "bf16_with_fp8_current_scaling_mixed"}),
    (_fp8("blockwise"), {"mixed_precision": "bf16_with_fp8_subchannel_scaling_mixed"}),
    (_fp8("mxfp8"), {"mixed_precision": "bf16_with_mxfp8_mixed"}),
    ({"--bf16": ()}, {"mixed_precision": "bf16_mixed"}),
    ({"--fp16": ()}, {"mixed_precision": "16-mixed"}),
)
_BRIDGE_ACTIVATIONS: Final[_Alternatives] = (
    (_SWIGLU, {"model.gated_linear_unit": "true", "model.activation_func": "silu"}),
    (_SQUARED, {"model.gated_linear_unit": "false", "model.activation_func": "squared_relu"}),
    (_GEGLU, {"model.gated_linear_unit": "true", "model.activation_func": "quick_gelu"}),
    ({}, {"model.gated_linear_unit": "false", "model.activation_func": "gelu"}),
)

_NEMO: Final[_Names] = {
    **_SAME, **_CHUNKED,
    **_plain("model.", "--micro-batch-size", "--global-batch-size", "--max-position-embeddings"),
    "--seq-length": "model.encoder_seq_length",
    "--recompute-granularity": "model.activations_checkpoint_granularity",
    "--recompute-method": "model.activations_checkpoint_method",
    "--recompute-num-layers": "model.activations_checkpoint_num_layers",
    "--clip-grad": "trainer.gradient_clip_val",
    "--sequence-parallel": _on("model.sequence_parallel"),
    "--disable-bias-linear": _off("model.bias"),
    "--untie-embeddings-and-output-weights": _off("model.share_embeddings_and_output_weights"),
    "--tp-comm-overlap": _on("model.ub_tp_comm_overlap"),
    "--use-distributed-optimizer": ("model.optim.name", "mcore_distributed_optim", "fused_adam"),
    "--overlap-grad-reduce": _on("model.optim.overlap_grad_sync"),
    "--overlap-param-gather": _on("model.optim.overlap_param_sync"),
    "--grad-reduce-in-bf16": ("model.optim.grad_sync_dtype", "bf16", "fp32"),
    "--moe-grouped-gemm": _on("model.moe_grouped_gemm"),
    "--no-gradient-accumulation-fusion": _off("model.gradient_accumulation_fusion"),
    "--no-masked-softmax-fusion": _off("model.masked_softmax_fusion"),
    "--no-bias-dropout-fusion": _off("model.bias_dropout_add_fusion"),
    "--no-rope-fusion": _off("model.apply_rope_fusion"),
}  # fmt: skip
_NEMO_PRECISIONS: Final[_Alternatives] = (
    (_fp8("delayed"), {"trainer.precision": "bf16", "model.fp8": "true", "model.fp8_hybrid": "true"}),
    ({"--bf16": ()}, {"trainer.precision": "bf16", "model.fp8": "false"}),
    ({"--fp16": ()}, {"trainer.precision": "16", "model.fp8": "false"}),
    ({}, {"trainer.precision": "32", "model.fp8": "false"}),
)
_NEMO_SHAPES: Final[_Alternatives] = (
    (_SWIGLU, {"model.activation": "fast-swiglu"}),
    (_SQUARED, {"model.activation": "squared-relu"}),
    ({}, {"model.activation": "gelu"}),
)
_NEMO_NORMS: Final[_Alternatives] = (
    ({"--normalization": ("RMSNorm",)}, {"model.normalization": "rmsnorm"}),
    ({}, {"model.normalization": "layernorm"}),
)


def _spoken(names: _Names, choices: Sequence[_Alternatives], job: Description, words: Words) -> Words:
    """Megatron-LM's words in other names; what has none is left out."""
    given = dict(words)
    if _PER_CHUNK in given:
        del given[_PER_CHUNK]
        given[_CHUNKS] = (str(job.parallel.virtual_stages),)
    found: dict[str, tuple[str, ...]] = {}
    for flag, key in names.items():
        if isinstance(key, tuple):
            found[key[0]] = (key[1] if flag in given else key[2],)
        elif flag in given:
            found[key] = given[flag]
    for alternatives in choices:
        for flags, keys in alternatives:
            if flags.items() <= given.items():
                found |= {key: (value,) for key, value in keys.items()}
                break
    return found


def _heard(names: _Names, choices: Sequence[_Alternatives], words: Words) -> Words:
    """Other names back in Megatron-LM's; unknown ones as they are."""
    given = dict(words)
    found: dict[str, tuple[str, ...]] = {}
    for flag, key in names.items():
        name = key[0] if isinstance(key, tuple) else key
        if name not in given:
            continue
        values = given.pop(name)
        if not isinstance(key, tuple):
            found[flag] = values
        elif values == (key[1],):
            found[flag] = ()
    for alternatives in choices:
        for flags, keys in alternatives:
            if all(given.get(key) == (value,) for key, value in keys.items()):
                found |= flags
                for key in keys:
                    del given[key]
                break
    if "--num-query-groups" in found:
        found["--group-query-attention"] = ()
    return {**found, **given}


def _parsed(words: Sequence[str], where: str) -> tuple[Words, list[str]]:
    """``key=value`` of a command; ``[a,b]`` is several words.  What stands before them chooses a recipe."""
    del where
    found: dict[str, tuple[str, ...]] = {}
    others = []
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if equals and not word.startswith("-"):
            several = re.fullmatch(r"\[(.*)\]", value)
            listed = several is not None and key.rpartition(".")[2] in _LISTS
            found[key] = tuple(several[1].split(",")) if several is not None and listed else (value,)
        else:
            others.append(word)
    return found, [f"not read: {' '.join(others)[:100]}"] if others else []


#: Keys of lists.
_LISTS: Final = ("recompute_modules", "offload_modules")


def _lines(words: Words) -> str:
    def value(key: str, values: tuple[str, ...]) -> str:
        return f"[{','.join(values)}]" if key.rpartition(".")[2] in _LISTS else " ".join(values)

    lines = [shlex.quote(f"{key}={value(key, values)}") for key, values in words.items()]
    return "OVERRIDES=(\n" + "".join(f"    {line}\n" for line in lines) + ")\n"


def _torchrun(job: Description, gpus_per_node: int) -> str:
    nodes = -(-job.parallel.world_size // gpus_per_node)
    each = min(gpus_per_node, job.parallel.world_size)
    return (
        f"torchrun --nnodes ${{NNODES:-{nodes}}} --nproc-per-node {each}"
        " --node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-localhost} \\\n"
    )


def _bridge_file(job: Description, words: Words, gpus_per_node: int) -> str:
    seq = {"dataset.sequence_length": words["model.seq_length"]}
    shared = {"optimizer.use_distributed_optimizer": words["ddp.use_distributed_optimizer"]}
    return (
        _lines({**words, **seq, **shared}) + _torchrun(job, gpus_per_node)
        + "    scripts/training/run_recipe.py --recipe ${RECIPE:?the name of a recipe} --mode pretrain"
        ' --dataset mock "${OVERRIDES[@]}" "$@"\n'
    )  # fmt: skip


def _nemo_file(job: Description, words: Words, gpus_per_node: int) -> str:
    nodes = -(-job.parallel.world_size // gpus_per_node)
    machine = {
        "trainer.num_nodes": (str(nodes),),
        "trainer.devices": (str(min(gpus_per_node, job.parallel.world_size)),),
        "model.mcore_gpt": ("true",), "model.data.data_impl": ("mock",),
    }  # fmt: skip
    return (
        _lines({**words, **machine}) + _torchrun(job, gpus_per_node)
        + '    examples/nlp/language_modeling/megatron_gpt_pretraining.py "${OVERRIDES[@]}" "$@"\n'
    )  # fmt: skip


def _renamed(
    name: str, called: str, preset: str, names: _Names, choices: Sequence[_Alternatives],
    rendered: Callable[[Description, Words, int], str], no_influence: str,
) -> Dialect:  # fmt: skip
    def document(content: Mapping[str, Any], where: str) -> Words:
        return flat_words(content, where)

    def refused(job: Description) -> Iterator[str]:
        return MEGATRON.refused(job)

    return Dialect(
        name=name,
        called=called,
        table=MEGATRON.table,
        preset=lambda words: (
            megatron_build(experts=True) if preset == "nemo-dgxc" and "--num-experts" in words else preset
        ),
        no_influence=re.compile(no_influence),
        refused=refused,
        parsed=_parsed,
        document=document,
        rendered=rendered,
        suffix=".sh",
        spoken=lambda job, words: _spoken(names, choices, job, words),
        heard=lambda words: _heard(names, choices, words),
    )


MEGATRON_BRIDGE: Final = _renamed(
    "megatron-bridge", "Megatron-Bridge", "megatron-bridge", _BRIDGE,
    (_BRIDGE_PRECISIONS, _BRIDGE_ACTIVATIONS), _bridge_file,
    r"dataset\..*|optimizer\..*|scheduler\..*|checkpoint\..*|logger\..*|rng\..*|profiling\..*|tokenizer\..*"
    r"|train\.(train_iters|train_samples|eval_.*|exit_.*|manual_gc.*)",
)  # fmt: skip
NEMO: Final = _renamed(
    "nemo", "NeMo", "nemo-dgxc", _NEMO, (_NEMO_PRECISIONS, _NEMO_SHAPES, _NEMO_NORMS), _nemo_file,
    r"trainer\..*|exp_manager\..*|model\.(data|tokenizer|mcore_gpt|restore_from_path|seed)(\..*)?"
    r"|model\.optim\.(lr|weight_decay|betas|sched.*)",
)  # fmt: skip

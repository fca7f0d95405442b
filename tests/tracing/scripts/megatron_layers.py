"""A GPT of Megatron-core on Transformer Engine's layers: WHICH of latent, further, experts, fp8, or of
parameters in fp8 by a recipe; two microbatches.
"""

import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_with_transformer_engine_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import MLATransformerConfig

SEQ, LAYERS, HIDDEN, HEADS, FFN, VOCAB = 1024, 2, 512, 8, 2048, 2048


def forward_step(batches, model):
    """The loss of a microbatch, and what makes it a number."""
    tokens = next(batches).cuda()
    positions = torch.arange(SEQ, device="cuda").expand(1, SEQ)
    losses = model(tokens, positions, None, labels=tokens)
    return losses, lambda loss: (loss.mean(), {"loss": loss.detach().mean()})


def config_of(which):
    """The model's."""
    words = {
        "num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "ffn_hidden_size": FFN,
        "bf16": True, "params_dtype": torch.bfloat16, "gradient_accumulation_fusion": True,
        "finalize_model_grads_func": finalize_model_grads, "add_bias_linear": False,
        "gated_linear_unit": True, "activation_func": torch.nn.functional.silu, "normalization": "RMSNorm",
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "bias_activation_fusion": True,
        "bias_dropout_fusion": True,
    }  # fmt: skip
    if "fp8" in which:
        words |= {"fp8": "hybrid", "fp8_recipe": "delayed"}
    for recipe in ("delayed", "tensorwise", "blockwise", "mxfp8"):
        if f"parameters-{recipe}" in which:
            words |= {"fp8": "e4m3", "fp8_recipe": recipe, "fp8_param": True}
    if "further" in which:
        words |= {"mtp_num_layers": 1}
    if "experts" in which:
        words |= {
            "num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 512, "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True, "moe_aux_loss_coeff": 1e-2,
        }  # fmt: skip
    if "latent" not in which:
        return TransformerConfig(apply_rope_fusion=True, **words)
    return MLATransformerConfig(
        q_lora_rank=192, kv_lora_rank=128, qk_head_dim=64, qk_pos_emb_head_dim=32, v_head_dim=64,
        rope_type="rope", apply_rope_fusion=False, **words,
    )  # fmt: skip


def main():
    """Three steps."""
    which = sys.argv[1:]
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    config = config_of(which)
    spec = get_gpt_layer_with_transformer_engine_spec(
        num_experts=8 if "experts" in which else None, moe_grouped_gemm="experts" in which,
        multi_latent_attention="latent" in which, qk_layernorm="latent" in which,
    )  # fmt: skip
    further = None
    if "further" in which:
        further = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=True)
    chunk = GPTModel(
        config, spec, VOCAB, SEQ, share_embeddings_and_output_weights=False, position_embedding_type="rope",
        mtp_block_spec=further,
    ).cuda()  # fmt: skip
    narrow = any(word.startswith("parameters-") for word in which)
    shared = {"reuse_grad_buf_for_mxfp8_param_ag": "parameters-mxfp8" in which}
    reduction = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=narrow, fp8_param_gather=narrow, **shared
    )
    model = DistributedDataParallel(config, reduction, Float16Module(config, chunk))
    options = OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=narrow,
        fp8_recipe=config.fp8_recipe if narrow else None, **shared,
    )  # fmt: skip
    optimizer = get_megatron_optimizer(options, [model])
    for _ in range(3):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter([torch.randint(0, VOCAB, (1, SEQ)) for _ in range(2)]),
            model=[model],
            num_microbatches=2,
            seq_length=SEQ,
            micro_batch_size=1,
            forward_only=False,
        )
        optimizer.step()


if __name__ == "__main__":
    main()

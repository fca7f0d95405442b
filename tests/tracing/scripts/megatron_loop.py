"""A training loop on Megatron-core, as users write it: two-way tensor parallel, two microbatches."""

import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

SEQ, BATCH = 32, 2


def forward_step(batches, model):
    """The loss of a microbatch, and what makes it a number."""
    tokens = next(batches).cuda()
    positions = torch.arange(SEQ, device="cuda").expand(BATCH, SEQ)
    mask = torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool, device="cuda").triu(1)
    losses = model(tokens, positions, mask, labels=tokens)
    return losses, lambda loss: (loss.mean(), {"loss": loss.detach().mean()})


def main():
    """Three steps; rank 0 says how many."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        tensor_model_parallel_size=2,
        gradient_accumulation_fusion=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    chunk = GPTModel(config, get_gpt_layer_local_spec(normalization="LayerNorm"), 256, SEQ).cuda()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), chunk)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-4), [model])
    steps = torch.tensor([3 if dist.get_rank() == 0 else 0], device="cuda")
    dist.broadcast(steps, 0)
    for _ in range(steps.item()):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter([torch.randint(0, 256, (BATCH, SEQ)) for _ in range(2)]),
            model=[model],
            num_microbatches=2,
            seq_length=SEQ,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        optimizer.step()


if __name__ == "__main__":
    main()

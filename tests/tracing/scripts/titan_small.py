"""Small models of torchtitan under one parallelism; ``titan_small.py HOW``: fsdp, tp, cp, pp or ep."""

from __future__ import annotations

import sys

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.models.qwen3.config_registry import qwen3_moe_debug

from workloads.tracing.recipes import titan_shims

LAYERS = 2


def main(how: str) -> None:
    titan_shims.install()
    config = qwen3_moe_debug() if how == "ep" else llama3_debugmodel()
    model = config.model_spec.model
    model.layers = model.layers[:LAYERS]
    config.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))
    config.activation_checkpoint = None
    config.training.disable_cuda_graphs = True
    config.training.local_batch_size, config.training.seq_len = 2, 512
    parallel = config.parallelism
    if how == "tp":
        parallel.tensor_parallel_degree = 4
    elif how == "cp":
        parallel.context_parallel_degree = 4
    elif how == "ep":
        parallel.expert_parallel_degree = 4
    elif how == "pp":
        parallel.pipeline_parallel_degree = 2
        parallel.pipeline_parallel_schedule = "1F1B"
        parallel.pipeline_parallel_first_stage_less_layers = 0
        parallel.pipeline_parallel_last_stage_less_layers = 0
        config.training.local_batch_size = 4
    titan_shims.leave_out(config)
    config.build().train()


if __name__ == "__main__":
    main(sys.argv[1])

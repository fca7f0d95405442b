"""Hugging Face models under DeepSpeed: ``deepspeed deepspeed_zero.py --stage 3``; needs transformers."""

from __future__ import annotations

import deepspeed
import torch

from workloads.tracing.recipes.hugging_face import build, model_parser


def main() -> None:
    """Train in bf16 on tokens that are all zero."""
    parser = model_parser()
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=1)
    options = parser.parse_args()
    deepspeed.init_distributed()
    model, _ = build(options.model, options.layers, options.seq)
    config = {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": options.stage, "overlap_comm": True},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    tokens = torch.zeros(options.batch, options.seq, dtype=torch.long, device=engine.device)
    for _ in range(options.train_steps * options.accumulate):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()

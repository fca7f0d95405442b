"""Hugging Face's own trainer: ``torchrun ... trainer.py --model gpt2``; needs transformers and accelerate."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from workloads.tracing.recipes.hugging_face import build, model_parser


class Zeros(Dataset[dict[str, torch.Tensor]]):
    """As many sequences of zeros as are asked for."""

    def __init__(self, count: int, seq: int) -> None:
        self._count, self._seq = count, seq

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(self._seq, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train in bf16 autocast, gradients clipped, under DDP or (with ``--fsdp``) FSDP1 layer by layer."""
    parser = model_parser()
    parser.add_argument("--fsdp", action="store_true")
    options = parser.parse_args()
    model, _ = build(options.model, options.layers, options.seq)
    arguments = TrainingArguments(
        output_dir="unused",
        max_steps=options.train_steps,
        per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        bf16=True,
        optim="adamw_torch_fused",
        fsdp="full_shard auto_wrap" if options.fsdp else "",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=Zeros(1 << 20, options.seq)).train()


if __name__ == "__main__":
    main()

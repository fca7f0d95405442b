"""llama.py as a pipeline of ``torch.distributed.pipelining``; ``llama_stages.py SCHEDULE CHUNKS``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from llama import BATCH, HIDDEN, SEQ, VOCAB, Block

MICROBATCHES = 4


class Stage(nn.Module):
    """One layer, with the embedding where it is the first of the model, and the head where it is the last."""

    def __init__(self, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN) if first else None
        self.layer = Block()
        self.norm = nn.RMSNorm(HIDDEN) if last else None
        self.output = nn.Linear(HIDDEN, VOCAB, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x if self.embedding is None else self.embedding(x))
        return x if self.norm is None or self.output is None else self.output(self.norm(x))


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def main(name: str, chunks: int) -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    kind = getattr(schedules, name)
    mine = [chunk * size + rank for chunk in range(chunks)]
    if name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        mine = [rank, 2 * size - 1 - rank]
    last = chunks * size - 1
    stages = [
        PipelineStage(
            Stage(first=index == 0, last=index == last).to(device, torch.bfloat16), index, last + 1, device
        )
        for index in mine
    ]
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=1e-4)
    tokens = torch.zeros(BATCH * MICROBATCHES, SEQ, dtype=torch.long, device=device)
    for _ in range(3):
        schedule.step(*([tokens] if 0 in mine else []), **({"target": tokens} if last in mine else {}))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

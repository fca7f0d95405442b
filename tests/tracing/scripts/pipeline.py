"""A small pipeline of ``torch.distributed.pipelining``, on GPUs with NCCL if there are any, else with gloo.

``pipeline.py SCHEDULE [static]``: gpipe, 1f1b, interleaved, zbv, dualpipev, each over all ranks;
ddp: 1f1b over two stages, replicated.  No pipelines: objects, ranks exchange Python objects; experts, tokens
go to the ranks that hold theirs; context, attention over a sequence that is split among ranks.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, MICROBATCHES = 32, 4, 4
MULTI = {
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


class Block(nn.Module):
    """A linear layer and what keeps its input's shape."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + nn.functional.gelu(self.linear(x))


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


def stages_of(mode, rank, size):
    """Stages of a rank: looped schedules go round, V-shaped ones there and back."""
    if mode in ("zbv", "dualpipev"):
        return (rank, 2 * size - 1 - rank)
    return (rank, rank + size) if mode in MULTI else (rank,)


def pipeline(mode, device, static):
    group, where = None, {}
    if mode == "ddp":
        mesh = init_device_mesh(device.type, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
        group = mesh.get_group("pp")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = stages_of(mode, rank, size)
    if static:
        example = torch.zeros(BATCH, WIDTH, device=device)
        where = {"input_args": example, "output_args": example}
    modules = [Block().to(device) for _ in mine]
    if mode == "ddp":
        modules = [DistributedDataParallel(one, process_group=mesh.get_group("dp")) for one in modules]
    stages = [
        PipelineStage(one, index, len(mine) * size, device, group=group, **where)
        for one, index in zip(modules, mine, strict=True)
    ]
    if mode in MULTI:
        schedule = MULTI[mode](stages, MICROBATCHES, loss_fn=loss_of)
    else:
        kind = ScheduleGPipe if mode == "gpipe" else Schedule1F1B
        schedule = kind(stages[0], MICROBATCHES, loss_fn=loss_of)
    return modules, schedule, any(one.is_first for one in stages), any(one.is_last for one in stages)


def train(mode, device, static, steps=3):
    modules, schedule, first, last = pipeline(mode, device, static)
    optimizer = torch.optim.SGD([p for one in modules for p in one.parameters()], lr=0.1, foreach=False)
    for _ in range(steps):
        batch = torch.zeros(BATCH * MICROBATCHES, WIDTH, device=device)
        arguments = (batch,) if first else ()
        schedule.step(*arguments, **({"target": batch} if last else {}))
        optimizer.step()
        optimizer.zero_grad()


def exchange(device, steps=3):
    """Rank 0 asks, the last rank answers with what everybody then uses as a width."""
    rank, size = dist.get_rank(), dist.get_world_size()
    linear = nn.Linear(WIDTH, WIDTH).to(device)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, foreach=False)
    for _ in range(steps):
        answer = [None]
        if rank == 0:
            dist.send_object_list(["how wide?", WIDTH], dst=size - 1, device=device)
        if rank == size - 1:
            question = [None, None]
            dist.recv_object_list(question, src=0, device=device)
            assert question[0] == "how wide?"
            answer = [{"width": question[1] // 2}]
        dist.broadcast_object_list(answer, src=size - 1, device=device)
        everyone = [None] * size
        if rank == 0:  # ranks call at lines of their own
            dist.all_gather_object(everyone, {**answer[0], "rank": rank})
        else:
            dist.all_gather_object(everyone, {**answer[0], "rank": rank})
        assert everyone == [{"width": WIDTH // 2, "rank": one} for one in range(size)]
        linear(torch.zeros(answer[0]["width"], WIDTH, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class Experts(nn.Module):
    """One expert per rank and a gate; a token goes where its first elements are largest."""

    def __init__(self):
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        size = dist.get_world_size()
        chosen = x[:, :size].topk(1).indices.flatten()
        counts = torch.bincount(chosen, minlength=size)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sends, receives = counts.tolist(), received.tolist()
        order = chosen.argsort()
        there = all_to_all_single_autograd(x[order], receives, sends, dist.group.WORLD)
        back = all_to_all_single_autograd(self.expert(there), sends, receives, dist.group.WORLD)
        return x.index_add(0, order, back)


class Attention(nn.Module):
    """Causal self-attention of two heads; ``forward`` takes (batch, sequence, width)."""

    def __init__(self):
        super().__init__()
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = [one.unflatten(2, (2, -1)).transpose(1, 2) for one in self.all(x).chunk(3, 2)]
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


def split_up(mode, device, steps=3):
    size = dist.get_world_size()
    model = (Experts() if mode == "experts" else Attention().bfloat16()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    mesh = init_device_mesh(device.type, (size,), mesh_dim_names=("split",))
    if mode == "context":
        set_rotate_method("alltoall")
    for _ in range(steps):
        if mode == "experts":  # every expert gets as many
            batch = nn.functional.one_hot(torch.arange(BATCH * size) % size, WIDTH).float().to(device)
            model(batch.requires_grad_()).sum().backward()
        else:
            batch = torch.zeros(1, BATCH * size, WIDTH, device=device, dtype=torch.bfloat16)
            with context_parallel(mesh, buffers=[batch], buffer_seq_dims=[1]):
                model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def main(mode, static=""):
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if mode == "objects":
        exchange(device)
    elif mode in ("experts", "context"):
        split_up(mode, device)
    else:
        train(mode, device, static == "static")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

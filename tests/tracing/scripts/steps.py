"""What a step is: ``steps.py two_optimizers | in_turn | marked | loader | once | host``."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from workloads.tracing import simcore_step


def two_optimizers(model, batch):
    """Two halves of the model, each with an optimizer of its own: one step together."""
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    for _ in range(4):
        model(batch).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def in_turn(model, batch):
    """A discriminator steps three times, then the generator; a third optimizer never does."""
    judge, maker = model
    optimizers = [torch.optim.Adam(part.parameters()) for part in (judge, maker, nn.Linear(4, 4).cuda())]
    for _ in range(4):
        for _ in range(3):
            judge(batch).sum().backward()
            nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
            optimizers[0].step()
        judge(maker(batch)).sum().backward()
        optimizers[1].step()


def once(model, batch):
    """One step and no more; its arguments are as a launcher gives them to each rank."""
    assert sys.argv[2] == f"--local_rank={os.environ['LOCAL_RANK']}"
    nn.Linear(3, 3)(torch.zeros(2, 3))  # asked on the host, and not trained
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batch).sum().backward()
    optimizer.step()


def host(model, batch):
    """Nothing runs on the GPU."""
    model, batch = model.cpu(), batch.cpu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(batch).sum().backward()
        optimizer.step()


def gathered(model, batch):
    """Parameters are written between backward passes, of which an optimizer steps behind every fifth."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for passed in range(20):
        for parameter in model.parameters():
            parameter.data.copy_(parameter.data.clone())
        model(batch).sum().backward()
        if passed % 5 == 4:
            optimizer.step()
            optimizer.zero_grad()


def unused(model, batch):
    """An optimizer is made, but parameters are updated without it."""
    held = [torch.optim.SGD(model.parameters(), lr=0.1)]
    for _ in range(4):
        model(batch).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
        held[0].zero_grad()


def marked(model, batch):
    """No optimizer of torch's; the script says where its steps are."""
    for _ in range(4):
        with simcore_step():
            model(batch).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
            model.zero_grad()


def loader(model, batch):
    """Batches from worker processes, mixed precision with a loss scale."""
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 4, (64,)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in DataLoader(data, 2, sampler=DistributedSampler(data), num_workers=2, pin_memory=True):
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(x.to(batch.device)), y.to(batch.device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def main(how):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
    run = {"two_optimizers": two_optimizers, "in_turn": in_turn, "marked": marked, "loader": loader}
    run |= {"once": once, "host": host, "gathered": gathered, "unused": unused}
    run[how](model, torch.zeros(2, 4, device="cuda"))


if __name__ == "__main__":
    main(sys.argv[1])

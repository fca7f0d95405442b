"""Tensor, context, pipeline and data parallelism by hand on 2 x 2 x 2 x 2 ranks, groups without names.

Stages exchange over the world's group, which every rank sees from another place; 1F1B, four microbatches.
``four_axes.py aside``: replicas alone, of which the first sends something to the seventh.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH, MICROBATCHES = 32, 4, 4


class Reduce(torch.autograd.Function):
    """Sums what the ranks of a group computed."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Layer(nn.Module):
    """A pair of linear layers split over ``tp``, whose input goes round ``ring`` once."""

    def __init__(self, tp, ring):
        super().__init__()
        self.tp, self.ring = tp, ring
        self.up, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        other = torch.empty_like(x)
        peer = self.ring[1 - self.ring.index(dist.get_rank())]
        sent = [dist.P2POp(dist.isend, x.detach(), peer), dist.P2POp(dist.irecv, other, peer)]
        for work in dist.batch_isend_irecv(sent):
            work.wait()
        return x + Reduce.apply(self.down(torch.relu(self.up(x + other))), self.tp)


def exchange(send, receive, peer):
    """Send or receive one tensor."""
    tensor = send if send is not None else torch.empty(BATCH, WIDTH, device="cuda", requires_grad=True)
    call = dist.P2POp(dist.irecv if receive else dist.isend, tensor, peer)
    for work in dist.batch_isend_irecv([call]):
        work.wait()
    return tensor


def four_axes(rank):
    grid = torch.arange(16).view(2, 2, 2, 2)  # dp, pp, cp, tp
    dp, pp, cp, tp = (int(place) for place in (grid == rank).nonzero()[0])
    groups = {}
    for name, rows in (
        ("tp", grid.reshape(-1, 2)),
        ("cp", grid.transpose(2, 3).reshape(-1, 2)),
        ("pp", grid.permute(0, 2, 3, 1).reshape(-1, 2)),
        ("dp_cp", grid.permute(1, 3, 0, 2).reshape(-1, 4)),
    ):
        groups[name] = dist.new_subgroups_by_enumeration(rows.tolist())[0]
    ring = [int(one) for one in grid[dp, pp, :, tp]]
    other_stage = int(grid[dp, 1 - pp, cp, tp])
    model = nn.Sequential(*(Layer(groups["tp"], ring) for _ in range(2))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    waiting = []

    def forward():
        x = exchange(None, True, other_stage) if pp else torch.zeros(BATCH, WIDTH, device="cuda")
        y = model(x)
        if not pp:
            exchange(y.detach(), False, other_stage)
        waiting.append((x, y.sum() if pp else y))

    def backward():
        gradient = None if pp else exchange(None, True, other_stage).detach()
        x, y = waiting.pop(0)
        torch.autograd.backward(y, gradient)
        if pp:
            exchange(x.grad, False, other_stage)

    for _ in range(3):
        for _ in range(1 - pp):
            forward()
        for _ in range(MICROBATCHES - (1 - pp)):
            forward()
            backward()
        for _ in range(1 - pp):
            backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=groups["dp_cp"])
        optimizer.step()
        optimizer.zero_grad()


def aside(rank):
    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    note = torch.zeros(3, device="cuda")
    for _ in range(3):
        model(torch.zeros(BATCH, WIDTH, device="cuda")).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if rank == 0:
            dist.send(note, 6)
        if rank == 6:
            dist.recv(note, 0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % 8)
    (aside if "aside" in sys.argv else four_axes)(dist.get_rank())

"""A DLRM whose tables are dealt out, dense layers under DDP; with NCCL where there are GPUs, else gloo.

``dlrm.py MODE``: table_wise (three tables on two ranks), row_wise (rows of each table on all ranks).
Sums of rows travel beside the bottom network, their gradients beside its backward.
"""

import itertools
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, DENSE, DIM = 64, 16, 32
ROWS, POOLING = (1000, 400, 60), (8, 4, 2)
BOTTOM, TOP = (512, 256, DIM), (512, 512, 256)
#: Tables of each rank, "table_wise".
HELD = ((0,), (1, 2))


class Sent(torch.autograd.Function):
    """Rows on their way; their gradients have come when its backward runs."""

    @staticmethod
    def forward(ctx, rows, exchange):
        ctx.exchange, ctx.shape = exchange, rows.shape
        return exchange.start(rows)

    @staticmethod
    def backward(ctx, gradient):
        ctx.exchange.works.pop().wait()
        return ctx.exchange.gradients.view(ctx.shape), None


class Arrived(torch.autograd.Function):
    """Rows that have come; their gradients set off."""

    @staticmethod
    def forward(ctx, rows, exchange):
        ctx.exchange = exchange
        exchange.works.pop().wait()
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.exchange.gradients = ctx.exchange.back(gradient.contiguous())
        return gradient, None


class WholeTables:
    """Sums of whole tables, from the ranks that have them to the ranks of the samples."""

    def __init__(self, rank, world):
        self.works, self.world = [], world
        self.mine = BATCH * DIM * len(HELD[rank])
        self.others = [BATCH * DIM * len(held) for held in HELD]

    def _go(self, sent, given, taken):
        got = sent.new_empty(sum(taken))
        self.works.append(dist.all_to_all_single(got, sent.reshape(-1), taken, given, async_op=True))
        return got

    def start(self, rows):
        return self._go(rows, [self.mine] * self.world, self.others)

    def back(self, gradient):
        return self._go(gradient, self.others, [self.mine] * self.world)


class PartialSums:
    """Sums over the rows of a rank, added up where their samples are."""

    def __init__(self, rank, world):
        self.works, self.world = [], world

    def start(self, rows):
        got = rows.new_empty(rows.numel() // self.world)
        self.works.append(dist.reduce_scatter_tensor(got, rows.reshape(-1), async_op=True))
        return got

    def back(self, gradient):
        got = gradient.new_empty(gradient.numel() * self.world)
        self.works.append(dist.all_gather_into_tensor(got, gradient.reshape(-1), async_op=True))
        return got


def network(widths, last):
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, *last)


class Recommender(nn.Module):
    """Keys go where rows are, sums come back, meet the features, and end in a click."""

    def __init__(self, mode, rank, world):
        super().__init__()
        self.held = HELD[rank] if mode == "table_wise" else range(len(ROWS))
        ways = 1 if mode == "table_wise" else world
        self.lookups = [POOLING[k] // ways for k in self.held]
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS[k] // ways, DIM, mode="sum", sparse=True) for k in self.held
        )
        self.exchange = (WholeTables if mode == "table_wise" else PartialSums)(rank, world)
        self.bottom = network((DENSE, *BOTTOM), ())
        count = len(ROWS) + 1
        self.register_buffer("below", torch.tril_indices(count, count, -1)[0] * count
                             + torch.tril_indices(count, count, -1)[1])  # fmt: skip
        self.top = network((DIM + count * (count - 1) // 2, *TOP), (nn.Linear(TOP[-1], 1),))

    def forward(self, dense, keys, taken, given):
        got = keys.new_empty(sum(taken))
        dist.all_to_all_single(got, keys, taken, given)
        world = dist.get_world_size()
        each = got.split([world * BATCH * lookups for lookups in self.lookups])
        sums = [
            table(one.view(-1, lookups)).view(world, BATCH, DIM)
            for table, one, lookups in zip(self.tables, each, self.lookups, strict=True)
        ]
        rows = Sent.apply(torch.cat(sums, 1) if len(sums) > 1 else sums[0], self.exchange)
        x = self.bottom(dense)
        rows = Arrived.apply(rows, self.exchange).view(len(ROWS), BATCH, DIM).transpose(0, 1)
        every = torch.cat([x.unsqueeze(1), rows], 1)
        pairs = torch.bmm(every, every.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, pairs.index_select(1, self.below)], 1)).squeeze(1)


def main(mode, steps=3):
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Recommender(mode, rank, world).to(device)
    names = [name for name, _ in model.named_parameters() if name.startswith("tables.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if mode == "table_wise":
        given = [BATCH * sum(POOLING[k] for k in held) for held in HELD]
    else:
        given = [BATCH * sum(POOLING) // world] * world
    taken = [BATCH * sum(model.lookups)] * world
    for _ in range(steps):
        dense, label = torch.randn(BATCH, DENSE, device=device), torch.ones(BATCH, device=device)
        keys = torch.randint(min(ROWS) // world, (sum(given),), device=device)
        loss = nn.functional.binary_cross_entropy_with_logits(parallel(dense, keys, taken, given), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
